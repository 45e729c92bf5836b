"""The best β of an input against its entropy, and the curves fitted to it (Figure 6)."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from sharpmax.report import style
from sharpmax.report.chart import data
from sharpmax.report.max_retrieval.tables import Tables
from sharpmax.report.rows import Row, thinned

POINTS = 1500
CURVES = {
    "published": style.POLICIES["paper"],
    "fitted": style.POLICIES["fitted"],
    "monotone": style.POLICIES["monotone"],
}


def fit(tables: Tables, opacity: Any = None) -> alt.LayerChart:
    """Return points of (entropy, best β) under the published, fitted and monotone curves.

    `opacity` is how strongly a point is drawn; the page gives more to those of the slider's size.
    """
    x = alt.X("entropy:Q", title="entropy of softmax attention, nats", axis=alt.Axis(tickCount=8))
    scale = alt.Scale(domain=[0, _top(tables)], nice=5)
    y = alt.Y("beta:Q", title=None, scale=scale, axis=alt.Axis(tickCount=5))
    layers: list[alt.Chart] = []
    if tables.fit:
        points = [_rounded(row, "size") for row in thinned(_finite(tables.fit), POINTS)]
        layers.append(
            alt.Chart(data(points))
            .mark_point(filled=True, size=14, color=style.MUTED, aria=False, clip=True)
            .encode(
                x=x,
                y=y,
                opacity=alt.value(0.35) if opacity is None else opacity,
                tooltip=[
                    alt.Tooltip("size:Q", title="items", format=",d"),
                    alt.Tooltip("entropy:Q", title="entropy, nats"),
                    alt.Tooltip("beta:Q", title="best β"),
                ],
            )
        )
    if tables.curves:
        curves = [_rounded(row, "policy") for row in _finite(tables.curves)]
        present = {row["policy"] for row in curves}
        policy = style.channels({name: CURVES[name] for name in CURVES if name in present})
        layers.append(
            alt.Chart(data(curves))
            .mark_line(strokeWidth=2.5, clip=True)
            .encode(
                x=x,
                y=y,
                tooltip=[
                    alt.Tooltip("policy:N", title="curve"),
                    alt.Tooltip("entropy:Q", title="entropy, nats", format=".2f"),
                    alt.Tooltip("beta:Q", title="β", format=".2f"),
                ],
                **policy,
            )
        )
    return alt.LayerChart(layer=layers).properties(
        width=560,
        height=320,
        title="Best inverse temperature β by entropy",
        description="The best β of each input against the entropy of its attention, with curves.",
    )


def _top(tables: Tables) -> float:
    """Return the β that all but a few points stay below: those few would flatten the rest."""
    betas = sorted(row["beta"] for row in _finite(tables.fit or tables.curves))
    return float(max(3.0, betas[int(0.97 * (len(betas) - 1))])) if betas else 3.0


def _finite(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if math.isfinite(row["entropy"]) and math.isfinite(row["beta"])]


def _rounded(row: Row, name: str) -> dict[str, Any]:
    numbers = {key: float(f"{row[key]:.4g}") for key in ("entropy", "beta")}
    return {name: row[name], **numbers}
