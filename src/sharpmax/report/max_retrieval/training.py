"""Loss and accuracy while the networks were trained."""

import math
from collections import defaultdict
from typing import Any

import altair as alt

from sharpmax.report import style
from sharpmax.report.chart import data
from sharpmax.report.max_retrieval.by_size import side_by_side
from sharpmax.report.max_retrieval.tables import Tables
from sharpmax.report.rows import mean, thinned

STEPS = 200
PLAIN_0 = "datum.value == 0 ? '0' : datum.label"  # not 0k


def training(tables: Tables) -> alt.HConcatChart:
    """Return the curves of loss and of accuracy: the mean over seeds, and their range."""
    return side_by_side(training_panels(tables), height=180)


def training_panels(tables: Tables) -> list[alt.LayerChart]:
    """Return the panel of losses and that of accuracies."""
    loss, accuracy = _over_seeds(tables, "loss"), _over_seeds(tables, "accuracy")
    percent = alt.Y(
        "mean:Q", title=None, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%")
    )
    return [
        _panel(loss, _loss_axis(loss), "Training loss"),
        _panel(accuracy, percent, "Training accuracy"),
    ]


def _loss_axis(rows: list[dict[str, Any]]) -> alt.Y:
    """Return a logarithmic axis that ends at a tick; a linear one where a loss is 0."""
    low = min((row["low"] for row in rows), default=0.0)
    if low <= 0:
        return alt.Y("mean:Q", title=None, scale=alt.Scale(nice=5), axis=alt.Axis(tickCount=5))
    high = max(row["high"] for row in rows)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 3)]
    top = min(tick for tick in ticks if tick > high)
    return alt.Y(
        "mean:Q",
        title=None,
        scale=alt.Scale(type="log", nice=False, domain=[low, top]),
        axis=alt.Axis(values=ticks, format="~g"),
    )


def _panel(rows: list[dict[str, Any]], y: alt.Y, title: str) -> alt.LayerChart:
    colour = style.POLICIES["paper"].light
    base = alt.Chart(data(rows)).encode(
        x=alt.X("step:Q", title="step", axis=alt.Axis(format="~s", tickCount=5, labelExpr=PLAIN_0)),
        tooltip=[
            alt.Tooltip("step:Q", format=",d"),
            alt.Tooltip("mean:Q", format=".3~g"),
            alt.Tooltip("low:Q", title="lowest seed", format=".3~g"),
            alt.Tooltip("high:Q", title="highest seed", format=".3~g"),
        ],
    )
    band = base.mark_area(color=colour, opacity=0.18).encode(y=alt.Y("low:Q"), y2="high:Q")
    line = base.mark_line(color=colour, strokeWidth=1.6).encode(y=y)
    return alt.LayerChart(layer=[band, line]).properties(
        title=title, description=f"{title} by step."
    )


def _over_seeds(tables: Tables, field: str) -> list[dict[str, Any]]:
    by_step: dict[int, list[float]] = defaultdict(list)
    for row in tables.training:
        if math.isfinite(row[field]):
            by_step[int(row["step"])].append(float(row[field]))
    rows = [
        {"step": step, "mean": mean(values), "low": min(values), "high": max(values)}
        for step, values in sorted(by_step.items())
    ]
    return [dict(row) for row in thinned(rows, STEPS)]
