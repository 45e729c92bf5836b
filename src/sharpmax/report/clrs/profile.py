"""The performance profile of the paper's Figure 7: a panel an algorithm, accuracy by size."""

import altair as alt

from sharpmax.report import style
from sharpmax.report.chart import data
from sharpmax.report.clrs.tables import Tables

COLUMNS = 4
PANEL_WIDTH, PANEL_HEIGHT = 220, 130


def profile(tables: Tables) -> alt.FacetChart:
    """Return right answers by size, a panel an algorithm and a line a case.

    Bars are 95 % intervals; the sizes that were trained on are marked below.
    """
    trained = {(row["algorithm"], row["size"]) for row in tables.answers if row["trained"]}
    rows = [
        {**row, "mark": 0.0 if (row["algorithm"], row["size"]) in trained else None}
        for row in tables.pooled("case", "algorithm", "size")
    ]
    held = alt.Chart()
    x = alt.X("size:Q", title="size", axis=alt.Axis(format="d", tickCount=4), scale=_from_zero())
    y = alt.Y("share:Q", title=None, axis=alt.Axis(format=".0%"), scale=alt.Scale(domain=[0, 1]))
    told = [
        alt.Tooltip("algorithm:N"),
        alt.Tooltip("case:N"),
        alt.Tooltip("size:Q"),
        alt.Tooltip("share:Q", title="right", format=".1%"),
        alt.Tooltip("low:Q", title="from", format=".1%"),
        alt.Tooltip("high:Q", title="to", format=".1%"),
        alt.Tooltip("asked:Q", format=",d"),
    ]
    channels = style.channels(style.lines(tables.cases), "case")
    line = held.mark_line(strokeWidth=2, point={"size": 24, "filled": True})
    bars = held.mark_rule(strokeWidth=1.2, opacity=0.5)
    marks = held.mark_point(shape="triangle-up", size=26, filled=True, color=style.MUTED)
    layers = [
        bars.encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=channels["color"]),
        line.encode(x=x, y=y, tooltip=told, **channels),
        marks.encode(x=x, y=alt.Y("mark:Q")),
    ]
    panel = alt.LayerChart(layer=layers, data=data(rows)).properties(
        width=PANEL_WIDTH, height=PANEL_HEIGHT
    )
    return panel.facet(
        facet=alt.Facet("algorithm:N", title=None),
        columns=COLUMNS,
    ).properties(
        title=alt.TitleParams(
            "Right answers by size",
            subtitle="bars: 95 % intervals; triangles: sizes that were trained on",
        )
    )


def _from_zero() -> alt.Scale:
    return alt.Scale(domainMin=0, nice=False)
