"""A measure of every head, layer by layer, as a heat map; the page's slider chooses the length."""

import altair as alt

from sharpmax.report import style
from sharpmax.report.diagnosis.by_length import is_chosen, length_parameter
from sharpmax.report.diagnosis.heads import MEASURES, Heads, tooltip
from sharpmax.report.head_grid import grid_height, head_axis, layer_axis


def heat_map(heads: Heads, field: str = "share") -> alt.VConcatChart:
    """Return the maps at the shortest and at the longest length, a row a case."""
    ends = dict.fromkeys((heads.lengths[0], heads.lengths[-1]))
    title = MEASURES[field]
    rows = [
        alt.HConcatChart(
            hconcat=[
                _at_length(heads, case, field, length).properties(
                    width=420, title=alt.TitleParams(case, subtitle=f"{title}, {length:,} tokens")
                )
                for length in ends
            ],
            spacing=32,
        )
        for case in heads.cases
    ]
    grid: alt.VConcatChart = alt.VConcatChart(vconcat=rows).resolve_scale(color="shared")
    return grid


def map_at_slider(
    heads: Heads, case: str, field: str, start: int, chosen: alt.Parameter
) -> alt.LayerChart:
    """Return a case's map at the length that the slider chooses; a click chooses a head."""
    title = MEASURES[field][:1].upper() + MEASURES[field][1:]
    layers = [
        cells().encode(color=_colour(field)).add_params(length_parameter(start), chosen),
        outline(chosen, style.MARK),
    ]
    return (
        alt.LayerChart(layer=layers, data=heads.data[case])
        .transform_filter("datum.length == length")
        .properties(
            width="container",
            height=map_height(heads, case),
            title=panel_title(heads, case, title),
            description=f"{title} of every head of {case}, by layer.",
        )
    )


def panel_title(heads: Heads, case: str, text: str, note: str = "") -> alt.TitleParams:
    """Return a panel's title, which is cut where the panel ends; it names one case of several."""
    several = len(heads.cases) > 1
    title, subtitle = (case, note or text) if several else (text, note)
    return alt.TitleParams(title, subtitle=subtitle, limit=alt.ExprRef("width"))


def map_height(heads: Heads, case: str) -> int:
    """Return how high a case's map is, in pixels."""
    return grid_height(len({row["head"] for row in heads.rows if row["case"] == case}))


def cells() -> alt.Chart:
    """Return a cell for every head, still without a colour."""
    drawn: alt.Chart = (
        alt.Chart()
        .mark_rect(aria=False, cursor="pointer")
        .encode(x=layer_axis(), y=head_axis(), tooltip=tooltip())
    )
    return drawn


def outline(chosen: alt.Parameter, colour: str) -> alt.Chart:
    """Return the frame around the chosen head's cell."""
    frame: alt.Chart = (
        alt.Chart()
        .mark_rect(fill=None, stroke=colour, strokeWidth=2.5, aria=False)
        .encode(x=layer_axis(), y=head_axis())
        .transform_filter(is_chosen(chosen))
    )
    return frame


def _at_length(heads: Heads, case: str, field: str, length: int) -> alt.Chart:
    chart: alt.Chart = cells().encode(color=_colour(field))
    return chart.properties(data=heads.data[case], height=map_height(heads, case)).transform_filter(
        alt.FieldEqualPredicate(field="length", equal=length)
    )


def _colour(field: str) -> alt.Color:
    scale = alt.Scale(domain=[0, 1], range=list(style.HEAT))
    legend = alt.Legend(title=None, orient="bottom", gradientLength=160, tickCount=3)
    return alt.Color(f"{field}:Q", scale=scale, legend=legend)
