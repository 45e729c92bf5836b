"""How often the maximum is found as sets grow, and what each policy gains over softmax."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from sharpmax.report import style
from sharpmax.report.chart import data
from sharpmax.report.max_retrieval.by_size import (
    highlighted,
    policy_lines,
    side_by_side,
    size_axis,
)
from sharpmax.report.max_retrieval.tables import Tables
from sharpmax.report.rows import Row, text


def accuracy(tables: Tables) -> alt.HConcatChart:
    """Return accuracy against size, a line a policy, and beside it the gain over softmax."""
    return side_by_side(accuracy_panels(tables))


def accuracy_panels(tables: Tables, chosen: alt.Parameter | None = None) -> list[alt.LayerChart]:
    """Return the two panels, the second where there is softmax to compare with.

    `chosen` is the selection of policies that stand out.
    """
    rows = [_compared(row) for row in tables.comparison]
    lines = tables.lines_of(rows)
    panels = [_accuracy_panel(tables, rows, lines, chosen)]
    if "softmax" in lines and len(lines) > 1:
        panels.append(_gain_panel(tables, rows, lines, chosen))
    return panels


def p_value_text(p_value: float | None) -> str:
    """Return a p-value as it is read: none is finer than a thousandth."""
    if p_value is None or p_value != p_value:
        return "–"
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def _accuracy_panel(
    tables: Tables,
    rows: Sequence[Row],
    lines: Mapping[str, style.Line],
    chosen: alt.Parameter | None,
) -> alt.LayerChart:
    y = alt.Y(
        "accuracy:Q",
        title=None,
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format=".0%"),
    )
    tooltip = {"percent": "accuracy", "interval": "95 % interval", "p": "p against softmax"}
    layers = policy_lines(rows, tables.sizes, lines, y, tooltip, chosen)
    notes = []
    if any(row["low"] < row["high"] for row in rows):
        notes.append("bands: 95 % interval over seeds")
        layers = [_band(tables, rows, lines, chosen), *layers]
    published = [
        {**row, "percent": text(row["accuracy"], ".1%"), "source": "the paper"}
        for row in tables.published
        if row["policy"] in lines and row["size"] in tables.sizes
    ]
    if published:
        notes.append("diamonds: published")
        layers += _published(tables, published, lines, y, chosen)
    return alt.LayerChart(layer=layers).properties(
        title=alt.TitleParams("Accuracy", subtitle="; ".join(notes)),
        description="Accuracy against the number of items, a line for each policy.",
    )


def _band(
    tables: Tables,
    rows: Sequence[Row],
    lines: Mapping[str, style.Line],
    chosen: alt.Parameter | None,
) -> alt.Chart:
    band: alt.Chart = (
        alt.Chart(data(rows))
        .mark_area(aria=False)
        .encode(
            x=size_axis(tables.sizes),
            y=alt.Y("low:Q", title=None),
            y2="high:Q",
            fill=style.companions(lines)["fill"],
            fillOpacity=highlighted(chosen, full=0.15, faint=0.0),
        )
    )
    return band


def _published(
    tables: Tables,
    rows: Sequence[Row],
    lines: Mapping[str, style.Line],
    y: alt.Y,
    chosen: alt.Parameter | None,
) -> list[alt.Chart]:
    """Return the paper's rows: thin lines and hollow marks in their policies' colours."""
    base = alt.Chart(data(rows)).encode(
        x=size_axis(tables.sizes),
        y=y,
        stroke=style.companions(lines)["stroke"],
        opacity=highlighted(chosen),
        tooltip=[
            alt.Tooltip("source:N"),
            alt.Tooltip("policy:N"),
            alt.Tooltip("size:Q", title="items", format=",d"),
            alt.Tooltip("percent:N", title="accuracy"),
        ],
    )
    return [
        base.mark_line(strokeWidth=1, strokeDash=[3, 3]),
        base.mark_point(filled=False, shape="diamond", size=44, strokeWidth=1.2),
    ]


def _gain_panel(
    tables: Tables,
    rows: Sequence[Row],
    lines: Mapping[str, style.Line],
    chosen: alt.Parameter | None,
) -> alt.LayerChart:
    signed = "datum.value == 0 ? '0' : format(datum.value, '+')"
    losses = any(row["gain"] < -0.5 for row in rows)
    scale = alt.Scale(nice=8) if losses else alt.Scale(nice=8, domainMin=0)
    axis = alt.Axis(tickCount=8, labelExpr=signed)
    y = alt.Y("gain:Q", title=None, scale=scale, axis=axis)
    tooltip = {"points": "percentage points", "p": "p against softmax"}
    others = [row for row in rows if row["policy"] != "softmax"]
    layers = policy_lines(others, tables.sizes, lines, y, tooltip, chosen)
    return alt.LayerChart(layer=layers).properties(
        title=alt.TitleParams("Gain over softmax", subtitle="percentage points of accuracy"),
        description="What each policy adds to the accuracy of softmax at each size.",
    )


def _compared(row: Row) -> dict[str, Any]:
    return {
        "policy": str(row["policy"]),
        "size": int(row["size"]),
        "accuracy": round(float(row["accuracy"]), 5),
        "low": max(0.0, round(float(row["low"]), 5)),
        "high": min(1.0, round(float(row["high"]), 5)),
        "gain": round(100 * float(row["difference"]), 3),
        "percent": text(row["accuracy"], ".1%"),
        "interval": f"{text(row['low'], '.1%')} to {text(row['high'], '.1%')}",
        "points": text(100 * row["difference"], "+.1f"),
        "p": p_value_text(row["p_value"]),
    }
