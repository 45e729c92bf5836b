"""How the entropy of every head grows with the context, beside ln n, which none can exceed."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from sharpmax.report import style
from sharpmax.report.chart import data
from sharpmax.report.diagnosis.by_length import is_chosen, length_axis, rule
from sharpmax.report.diagnosis.heads import Heads, tooltip
from sharpmax.report.diagnosis.heat_map import panel_title
from sharpmax.report.diagnosis.kinds import kind_colours

FAINT, BACK = 0.35, 0.05
SUBTITLE = "nats; bold: the mean; dashed: ln n, the limit"


def entropy(heads: Heads) -> alt.HConcatChart:
    """Return a panel a case, side by side, under one legend."""
    panels = [
        _panel(heads, case, [_every_head(heads, case)]).properties(
            width=420, height=300, title=alt.TitleParams(f"Entropy: {case}", subtitle=SUBTITLE)
        )
        for case in heads.cases
    ]
    return alt.HConcatChart(hconcat=panels, spacing=44)


def entropy_panel(heads: Heads, case: str, start: int, chosen: alt.Parameter) -> alt.LayerChart:
    """Return a case's panel for the page: the chosen head stands out, and so do chosen kinds."""
    kinds = alt.selection_point(name="kinds", fields=["kind"], bind="legend", toggle="true")
    opacity = alt.when(kinds & chosen).then(alt.value(FAINT)).otherwise(alt.value(BACK))
    every = _every_head(heads, case).encode(opacity=opacity).add_params(kinds, chosen)
    one = (
        _every_head(heads, case)
        .mark_line(strokeWidth=3.5, point={"size": 50, "filled": True, "opacity": 1})
        .encode(opacity=alt.value(1))
        .transform_filter(is_chosen(chosen))
    )
    return _panel(heads, case, [rule(heads.lengths, start), every], [one]).properties(
        width="container",
        height=320,
        title=panel_title(heads, case, "Entropy of every head", SUBTITLE),
        description=f"The entropy of every head of {case} against the length, beside ln n.",
    )


def _panel(
    heads: Heads, case: str, below: Sequence[alt.Chart], above: Sequence[alt.Chart] = ()
) -> alt.LayerChart:
    """Return layers with ln n under them all and the mean between `below` and `above`."""
    uniform = [{"length": n, "entropy": round(math.log(n), 4)} for n in heads.lengths]
    mean = [
        {"length": row["length"], "entropy": row["entropy"]}
        for row in heads.means
        if row["case"] == case
    ]
    return alt.LayerChart(
        layer=[
            _line(heads, uniform, strokeWidth=1.2, strokeDash=[6, 4]),
            *below,
            _line(heads, mean, strokeWidth=2.8, point={"size": 30, "color": style.INK}),
            *above,
        ]
    )


def _every_head(heads: Heads, case: str) -> alt.Chart:
    """Return a line for each head; with one length alone, a point."""
    lines: alt.Chart = (
        alt.Chart(heads.data[case])
        .mark_line(strokeWidth=1.2, point=len(heads.lengths) == 1, aria=False, cursor="pointer")
        .encode(
            x=length_axis(heads.lengths),
            y=_axis(heads),
            detail=["layer:N", "head:N"],
            color=kind_colours(heads, "stroke"),
            opacity=alt.value(FAINT),
            tooltip=tooltip(),
        )
    )
    return lines


def _line(heads: Heads, rows: Sequence[dict[str, Any]], **drawn: Any) -> alt.Chart:
    line: alt.Chart = (
        alt.Chart(data(rows))
        .mark_line(color=style.INK, **drawn)
        .encode(
            x=length_axis(heads.lengths),
            y=_axis(heads),
            tooltip=[
                alt.Tooltip("length:Q", title="tokens", format=",d"),
                alt.Tooltip("entropy:Q", title="nats", format=".2f"),
            ],
        )
    )
    return line


def _axis(heads: Heads) -> alt.Y:
    scale = alt.Scale(domain=[0, 1.02 * math.log(heads.lengths[-1])], nice=False)
    return alt.Y("entropy:Q", title=None, scale=scale)
