"""What is found against what text pays for it, and against how many heads are changed."""

from typing import Any

import altair as alt

from sharpmax.report import style
from sharpmax.report.calibration.tables import Tables
from sharpmax.report.chart import data

PLAIN = "plain"


def frontier(tables: Tables) -> alt.LayerChart:
    """Return a dot for every policy along the way, and one for the original model."""
    drawn = alt.Chart(data(_rows(tables)))
    x = alt.X("text_cost:Q", title="loss on text over the original model's", axis=_percent(".1%"))
    y = alt.Y("retrieval:Q", title="answers found", axis=_percent(".0%"), scale=_from_zero())
    told = [
        alt.Tooltip("name:N", title="policy"),
        alt.Tooltip("heads:Q", title="heads changed"),
        alt.Tooltip("retrieval:Q", title="answers found", format=".1%"),
        alt.Tooltip("text_cost:Q", title="loss on text", format="+.2%"),
    ]
    colour = alt.Color(
        "kind:N",
        title=None,
        scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())),
        legend=alt.Legend(symbolType="circle"),
    )
    dots = drawn.mark_circle(size=130, opacity=1).encode(x=x, y=y, color=colour, tooltip=told)
    names = drawn.mark_text(align="left", dx=9, dy=-8, color=style.MUTED).encode(
        x=x, y=y, text="name:N"
    )
    return alt.LayerChart(layer=[dots, names]).properties(
        title=alt.TitleParams("Answers found against the cost on text"),
        description="Every policy of the calibration: answers found over the loss on text.",
    )


def by_heads(tables: Tables) -> alt.LayerChart | None:
    """Return what is found with all heads, fewer and fewer; None if that was not tried."""
    every = _rows(tables)[1:]
    fewer = [row for row in every if _has_fewer_heads(row["name"]) and row["heads"]]
    if not fewer:
        return None
    whole = [row for row in every if not _has_fewer_heads(row["name"])]
    rows = [*fewer, next((row for row in whole if row["kind"] == KEPT), whole[-1])]
    drawn = alt.Chart(data(rows))
    x = alt.X(
        "heads:Q",
        title="heads changed",
        scale=alt.Scale(type="log", base=2, nice=False, padding=14),
        axis=alt.Axis(values=sorted(row["heads"] for row in rows), format="d"),
    )
    y = alt.Y("retrieval:Q", title="answers found", axis=_percent(".0%"), scale=_from_zero())
    told = [
        alt.Tooltip("heads:Q", title="heads changed"),
        alt.Tooltip("retrieval:Q", title="answers found", format=".1%"),
        alt.Tooltip("text_cost:Q", title="loss on text", format="+.2%"),
    ]
    line = drawn.mark_line(color=style.ACCENT, strokeWidth=2, point={"size": 40, "filled": True})
    plain = alt.Chart(data([{"retrieval": tables.plain["retrieval"]}])).mark_rule(
        color=style.MUTED, strokeDash=[4, 3]
    )
    return alt.LayerChart(
        layer=[plain.encode(y="retrieval:Q"), line.encode(x=x, y=y, tooltip=told)]
    ).properties(
        title=alt.TitleParams(
            "Answers found with fewer heads", subtitle="dashed: the original model"
        ),
        description="Answers found over the number of heads that the policy changes.",
    )


EVERY, FEWER, KEPT, ORIGINAL = "all heads", "fewer heads", "kept", "original model"
COLOURS = {
    ORIGINAL: style.POLICIES["softmax"].light,
    EVERY: style.POLICIES["paper"].light,
    FEWER: style.POLICIES["log length"].light,
    KEPT: style.MARK,
}


def _rows(tables: Tables) -> list[dict[str, Any]]:
    plain: dict[str, Any] = {
        "name": PLAIN,
        "kind": ORIGINAL,
        "heads": 0,
        "retrieval": tables.plain["retrieval"],
        "text_cost": 0.0,
    }
    rows = [plain]
    for point in tables.points:
        kind = FEWER if _has_fewer_heads(point["name"]) else EVERY
        kind = KEPT if point["name"] == tables.kept else kind
        fields = ("name", "heads", "retrieval", "text_cost")
        rows.append({"kind": kind, **{field: point[field] for field in fields}})
    return rows


def _has_fewer_heads(name: str) -> bool:
    return name.endswith("heads")


def _percent(form: str) -> alt.Axis:
    return alt.Axis(format=form)


def _from_zero() -> alt.Scale:
    return alt.Scale(domainMin=0)
