"""Where attention goes as sets grow: heat maps of its weights (Figures 2 and 5 of the paper)."""

from typing import Any

import altair as alt

from sharpmax.report import style
from sharpmax.report.chart import data
from sharpmax.report.max_retrieval.by_size import size_parameter
from sharpmax.report.max_retrieval.tables import Tables, headed, spoken
from sharpmax.report.rows import Row

SETS, ITEMS = 32, 16


def attention(tables: Tables, policy: str = "softmax") -> alt.FacetChart:
    """Return a heat map for every size, side by side: a row a set, the largest key norm right."""
    return (
        _cells(axes=False)
        .properties(width=84, height=168)
        .facet(data=data(_weights(tables, policy)), column=_sizes_in_columns(), spacing=8)
        .properties(title=_title(policy))
    )


def attention_sharpened(tables: Tables) -> alt.FacetChart:
    """Return the heat maps under the policy that sharpens: the paper's where it was kept."""
    return attention(tables, sharpened_policy(tables) or "softmax")


def attention_at_size(tables: Tables, policy: str, start: int) -> alt.LayerChart:
    """Return one heat map, of the size that the page's slider chooses, with the true maxima."""
    rows = _weights(tables, policy)
    cells = _cells(axes=True).add_params(size_parameter(start))
    maxima = (
        alt.Chart()
        .mark_point(shape="circle", filled=True, size=16, color=style.MARK, opacity=1, aria=False)
        .encode(x=_rank(True), y=_set(True))
        .transform_filter("datum.maximum == 'yes'")
    )
    return (
        alt.LayerChart(layer=[cells, maxima], data=data(rows))
        .transform_filter("datum.size == size")
        .properties(
            width="container",
            height=400,
            title=headed(policy),
            description=f"Attention weights under {spoken(policy)} on {SETS} sets.",
        )
    )


def policies_with_attention(tables: Tables) -> list[str]:
    """Return the policies whose attention was kept, in the palette's order."""
    present = {row["policy"] for row in tables.attention}
    return [policy for policy in tables.lines if policy in present]


def sharpened_policy(tables: Tables) -> str | None:
    """Return the policy to show beside softmax, if the attention of any was kept."""
    others = [policy for policy in policies_with_attention(tables) if policy != "softmax"]
    return "paper" if "paper" in others else next(iter(others), None)


def _weights(tables: Tables, policy: str) -> list[dict[str, Any]]:
    rows = [row for row in tables.attention if row["policy"] == policy]
    sets = set(sorted({row["set"] for row in rows})[:SETS])
    return [_record(row) for row in rows if row["set"] in sets and row["rank"] <= ITEMS]


def _record(row: Row) -> dict[str, Any]:
    return {
        "size": int(row["size"]),
        "set": int(row["set"]),
        "rank": int(row["rank"]),
        "weight": float(f"{row['weight']:.3g}"),
        "maximum": "yes" if row["is_maximum"] else "no",
    }


def _cells(axes: bool) -> alt.Chart:
    scale = alt.Scale(domain=[0, 1], range=list(style.HEAT))
    cells: alt.Chart = (
        alt.Chart()
        .mark_rect(aria=False)
        .encode(
            x=_rank(axes),
            y=_set(axes),
            color=alt.Color(
                "weight:Q",
                scale=scale,
                legend=alt.Legend(
                    title="weight",
                    orient="bottom" if axes else "right",
                    gradientLength=160 if axes else 140,
                    tickCount=3,
                ),
            ),
            tooltip=[
                alt.Tooltip("set:Q", title="set"),
                alt.Tooltip("rank:Q", title="rank by key norm"),
                alt.Tooltip("weight:Q", title="weight"),
                alt.Tooltip("maximum:N", title="the true maximum?"),
            ],
        )
    )
    return cells


def _rank(axes: bool) -> alt.X:
    axis = alt.Axis(labelAngle=0, ticks=False, domain=False, offset=2) if axes else None
    title = "rank by key norm, the largest on the right"
    return alt.X("rank:O", sort="descending", title=title, axis=axis)


def _set(axes: bool) -> alt.Y:
    axis = alt.Axis(labels=False, ticks=False, domain=False) if axes else None
    return alt.Y("set:O", title="sets", axis=axis)


def _sizes_in_columns() -> alt.Column:
    header = alt.Header(labelExpr="format(datum.value, ',d') + ' items'", labelPadding=4)
    return alt.Column("size:O", title=None, header=header)


def _title(policy: str) -> alt.TitleParams:
    return alt.TitleParams(
        f"Attention under {spoken(policy)}",
        subtitle=(
            f"a row for each set; in it the {ITEMS} items of largest key norm, "
            "the largest on the right"
        ),
    )
