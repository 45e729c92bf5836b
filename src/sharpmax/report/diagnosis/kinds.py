"""What kind of head each is: a map of them, and their number."""

import altair as alt

from sharpmax.report import style
from sharpmax.report.diagnosis.heads import Heads
from sharpmax.report.diagnosis.heat_map import cells, map_height, outline, panel_title
from sharpmax.report.page import Table


def kinds(heads: Heads) -> alt.HConcatChart:
    """Return a map of kinds for each case, side by side."""
    panels = [
        kinds_panel(heads, case).properties(width=420, title=f"Kinds of heads: {case}")
        for case in heads.cases
    ]
    return alt.HConcatChart(hconcat=panels, spacing=32)


def kinds_panel(heads: Heads, case: str, chosen: alt.Parameter | None = None) -> alt.LayerChart:
    """Return the map of a case's heads, coloured by what they are at its longest length."""
    longest = heads.lengths_of(case)[-1]
    coloured = cells().encode(color=kind_colours(heads, "square"))
    layers = (
        [coloured] if chosen is None else [coloured.add_params(chosen), outline(chosen, style.INK)]
    )
    return (
        alt.LayerChart(layer=layers, data=heads.data[case])
        .transform_filter(alt.FieldEqualPredicate(field="length", equal=longest))
        .properties(
            width="container",
            height=map_height(heads, case),
            title=panel_title(heads, case, f"Kinds at {longest:,} tokens"),
            description=f"The kind of every head of {case}, by layer.",
        )
    )


def kind_colours(heads: Heads, symbol: str) -> alt.Color:
    """Return the encoding that gives every kind its colour, and the legend."""
    scale = alt.Scale(domain=list(heads.kinds), range=[line.light for line in heads.kinds.values()])
    size = 300 if symbol == "stroke" else 110
    legend = alt.Legend(
        title=None,
        symbolType=symbol,
        symbolSize=size,
        symbolStrokeWidth=2.5,
        symbolOpacity=1,
        columns=3,
    )
    return alt.Color("kind:N", scale=scale, legend=legend)


def kinds_table(heads: Heads) -> Table:
    """Return how many heads are of each kind, a row a case."""
    longest = {heads.lengths_of(case)[-1] for case in heads.cases}
    at = f"at {longest.pop():,} tokens" if len(longest) == 1 else "at its case's longest length"
    return Table(
        caption=f"How many heads are of each kind {at}",
        header=["case", "heads", *heads.kinds],
        rows=[
            [
                case,
                f"{heads.counts(case).total():,}",
                *(f"{heads.counts(case)[kind]:,}" for kind in heads.kinds),
            ]
            for case in heads.cases
        ],
    )
