"""How attention disperses as sets grow: its entropy, and its weight on the maximum."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from sharpmax.report import style
from sharpmax.report.chart import data
from sharpmax.report.max_retrieval.by_size import policy_lines, side_by_side, size_axis
from sharpmax.report.max_retrieval.tables import Tables
from sharpmax.report.rows import Row, mean_by, text

TOOLTIP = {
    "nats": "entropy, nats",
    "on maximum": "weight on the maximum",
    "at most": "its bound exp(βδ)/n",
    "δ": "δ, the logits' spread",
    "β": "β",
}


def entropy(tables: Tables) -> alt.HConcatChart:
    """Return entropy against size beside ln n, and weight on the maximum beside its bound."""
    return side_by_side(dispersion_panels(tables))


def dispersion_panels(tables: Tables, chosen: alt.Parameter | None = None) -> list[alt.LayerChart]:
    """Return the panel of entropies and that of weights; `chosen` policies stand out."""
    fields = ("entropy", "weight", "beta", "spread", "bound")
    rows = [_told(row) for row in mean_by(tables.evaluation, ["policy", "size"], *fields)]
    return [_entropy_panel(tables, rows, chosen), _weight_panel(tables, rows, chosen)]


def _entropy_panel(
    tables: Tables, rows: Sequence[Row], chosen: alt.Parameter | None
) -> alt.LayerChart:
    y = alt.Y("entropy:Q", title=None, scale=alt.Scale(nice=5), axis=alt.Axis(tickCount=5))
    finite = [row for row in rows if row["entropy"] is not None]
    uniform = [{"size": n, "entropy": round(math.log(n), 4)} for n in tables.sizes]
    layers = [
        _theory(tables, uniform, y),
        *policy_lines(finite, tables.sizes, tables.lines_of(rows), y, TOOLTIP, chosen),
    ]
    return alt.LayerChart(layer=layers).properties(
        title=alt.TitleParams(
            "Entropy of attention", subtitle="nats; dashed: ln n, where all weights are equal"
        ),
        description="Mean entropy of attention against the number of items, beside ln n.",
    )


def _weight_panel(
    tables: Tables, rows: Sequence[Row], chosen: alt.Parameter | None
) -> alt.LayerChart:
    positive = [row for row in rows if row["weight"]]
    bounds = [
        {"size": row["size"], "weight": row["bound"]}
        for row in positive
        if row["policy"] == "softmax" and row["bound"]
    ]
    least = min((row["weight"] for row in positive), default=0.1)
    lowest = 10.0 ** math.floor(math.log10(min(least, 0.1)))
    decades = [10.0**power for power in range(round(math.log10(lowest)), 1)]
    y = alt.Y(
        "weight:Q",
        title=None,
        scale=alt.Scale(
            type="log", domain=[5 * lowest if least >= 5 * lowest else lowest, 1], nice=False
        ),
        axis=alt.Axis(values=decades, format="~g"),
    )
    layers = [
        _theory(tables, bounds, y),
        *policy_lines(positive, tables.sizes, tables.lines_of(rows), y, TOOLTIP, chosen),
    ]
    return alt.LayerChart(layer=layers if bounds else layers[1:]).properties(
        title=alt.TitleParams(
            "Weight on the true maximum",
            subtitle="dashed: the bound on softmax, exp(δ)/n" if bounds else "",
        ),
        description="Mean weight on the true maximum against the number of items, log scale.",
    )


def _theory(tables: Tables, rows: Sequence[Row], y: alt.Y) -> alt.Chart:
    line: alt.Chart = (
        alt.Chart(data(rows))
        .mark_line(color=style.INK, strokeWidth=1.2, strokeDash=[6, 4])
        .encode(x=size_axis(tables.sizes), y=y)
    )
    return line


def _told(row: Row) -> dict[str, Any]:
    """Return a mean with what its tooltip says: an infinite β has no mean, and is a dash."""
    return {
        "policy": str(row["policy"]),
        "size": int(row["size"]),
        **{
            name: None if row[name] is None else float(f"{row[name]:.4g}")
            for name in ("entropy", "weight", "bound")
        },
        "nats": text(row["entropy"], ".3f"),
        "on maximum": text(row["weight"], ".3g"),
        "at most": text(row["bound"], ".3g"),
        "δ": text(row["spread"], ".2f"),
        "β": text(row["beta"], ".2f"),
    }
