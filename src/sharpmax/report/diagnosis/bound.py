"""What the logits allow: the largest weight beside its bound, and how far half a weight can go."""

import math

import altair as alt

from sharpmax.report import style
from sharpmax.report.chart import data
from sharpmax.report.diagnosis.by_length import (
    head_or_mean,
    is_chosen,
    length_parameter,
    rule,
    whose,
)
from sharpmax.report.diagnosis.heads import Heads, tooltip
from sharpmax.report.diagnosis.heat_map import panel_title
from sharpmax.report.diagnosis.kinds import kind_colours

NOTE = "share of heads whose half-length is no longer"


def bound(heads: Heads) -> alt.HConcatChart:
    """Return the mean largest weight beside its bound, and every head's half-length."""
    longest = heads.lengths[-1]
    at_longest = alt.FieldEqualPredicate(field="length", equal=longest)
    weights = alt.LayerChart(layer=_weights(heads, None)).properties(
        title=alt.TitleParams("Largest weight: mean over heads", subtitle="dashed: exp(βδ)/n")
    )
    half_lengths = [
        alt.LayerChart(
            layer=[_limit(heads, at_longest), _dots(heads, case, at_longest)]
        ).properties(
            title=alt.TitleParams(f"Half-length at {longest:,} tokens: {case}", subtitle=NOTE)
        )
        for case in heads.cases
    ]
    panels = [panel.properties(width=400, height=300) for panel in (weights, *half_lengths)]
    row: alt.HConcatChart = alt.HConcatChart(hconcat=panels, spacing=44).resolve_scale(
        color="independent"
    )
    return row


def bound_panel(heads: Heads, start: int, chosen: alt.Parameter) -> alt.LayerChart:
    """Return the largest weight of the chosen head, or of the mean, beside its bound."""
    first, *others = _weights(heads, chosen)
    layers = [rule(heads.lengths, start), first.add_params(chosen), *others]
    return alt.LayerChart(layer=layers).properties(
        width="container",
        height=300,
        title=whose("Largest weight", chosen, "dashed: the bound exp(βδ)/n"),
        description="The largest weight against the length, beside its bound, log scale.",
    )


def half_length_panel(heads: Heads, case: str, start: int, chosen: alt.Parameter) -> alt.LayerChart:
    """Return a case's heads by half-length, at the slider's length."""
    at_slider = "datum.length == length"
    dots = _dots(heads, case, at_slider)
    one = (
        dots.mark_point(size=130, filled=False, stroke=style.MARK, strokeWidth=2.5)
        .transform_filter(is_chosen(chosen))
        .encode(color=alt.value(style.MARK))
    )
    layers = [
        _limit(heads, at_slider).add_params(length_parameter(start)),
        dots.add_params(chosen),
        one,
    ]
    return alt.LayerChart(layer=layers).properties(
        width="container",
        height=300,
        title=panel_title(heads, case, "Half-length of every head", NOTE),
        description=f"The half-length of every head of {case}, in order.",
    )


def _weights(heads: Heads, chosen: alt.Parameter | None) -> list[alt.Chart]:
    """Return the lines of the largest weight, and dashed those of its bound."""
    lowest = min((row["largest"] for row in heads.rows if row["largest"]), default=0.1)
    lowest = min(0.8 * lowest, 0.1)
    decades = [10.0**power for power in range(math.ceil(math.log10(lowest)), 1)]

    def y(field: str) -> alt.Y:
        scale = alt.Scale(type="log", domain=[lowest, 1], nice=False)
        axis = alt.Axis(values=decades, format="~g")
        return alt.Y(f"{field}:Q", title=None, scale=scale, axis=axis)

    return [
        *head_or_mean(heads, y("largest"), chosen),
        *head_or_mean(heads, y("bound"), chosen, dash=(6, 4)),
    ]


def _dots(heads: Heads, case: str, at: str | alt.FieldEqualPredicate) -> alt.Chart:
    y = alt.Y("position:Q", title=None, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%"))
    dots: alt.Chart = (
        alt.Chart(heads.data[case])
        .mark_point(filled=True, size=34, opacity=0.85, aria=False, cursor="pointer")
        .encode(
            x=_half_length(heads, "half_length"),
            y=y,
            color=kind_colours(heads, "circle"),
            tooltip=tooltip(),
        )
        .transform_filter(at)
    )
    return dots


def _limit(heads: Heads, at: str | alt.FieldEqualPredicate) -> alt.Chart:
    """Return the line at the length: a head left of it can give no token half of its weight."""
    line: alt.Chart = (
        alt.Chart(data({"length": length} for length in heads.lengths))
        .mark_rule(color=style.MUTED, strokeWidth=1, opacity=0.7)
        .encode(x=_half_length(heads, "length"))
        .transform_filter(at)
    )
    return line


def _half_length(heads: Heads, field: str) -> alt.X:
    tokens = [row["half_length"] for row in heads.rows if row["half_length"]] + heads.lengths
    low, high = math.floor(math.log10(min(tokens))), math.ceil(math.log10(max(tokens)))
    ticks = [10.0**power for power in range(low, high + 1)]
    return alt.X(
        f"{field}:Q",
        title="half-length 2·exp(βδ), tokens",
        scale=alt.Scale(type="log", nice=False, domain=[ticks[0], ticks[-1]], padding=6),
        axis=alt.Axis(values=ticks, format="~s"),
    )
