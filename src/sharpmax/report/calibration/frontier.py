"""What is found against what text pays for it, and against how many heads are changed."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from sharpmax.report import style
from sharpmax.report.calibration.tables import PLAIN, Tables
from sharpmax.report.chart import data
from sharpmax.report.rows import Row

ORIGINAL, EVERY, FEWER, KEPT = "original model", "all heads", "fewer heads", "kept"
SHAPES = {ORIGINAL: "square", EVERY: "circle", FEWER: "triangle-up", KEPT: "diamond"}
LENGTHS = (*(style.POLICIES[name].light for name in ("held", "paper")), style.SPARE[0].light)
"""The colours of lengths, the shortest first: of half the fitted one, of it, and of twice it."""
LOOKED_AT = "those looked at"
"""Prompts that nothing was fitted to, of two lengths, by which policies are chosen."""


def frontier(tables: Tables) -> alt.LayerChart:
    """Return what every policy finds over what text pays under it, a line a length."""
    rows = _rows(tables)
    series = _series(rows)
    x = alt.X("text_cost:Q", title="loss on text over the original model's", axis=_percent(".1%"))
    y = alt.Y("retrieval:Q", title="answers found", axis=_percent(".0%"), scale=_from_zero())
    kinds = [kind for kind in SHAPES if any(row["kind"] == kind for row in rows)]
    shape = alt.Shape(
        "kind:N",
        scale=alt.Scale(domain=kinds, range=[SHAPES[kind] for kind in kinds]),
        legend=alt.Legend(
            title=None, columns=2, symbolSize=90, symbolFillColor=style.MUTED, symbolStrokeWidth=0
        ),
    )
    way = alt.Chart(data([row for row in rows if row["kind"] != FEWER]))
    line = way.mark_line(strokeWidth=1.5, opacity=0.5).encode(x=x, y=y, color=_colour(series))
    every = alt.Chart(data(rows)).mark_point(size=90, opacity=1, filled=True)
    dots = every.encode(x=x, y=y, color=_colour(series), shape=shape, tooltip=_told())
    named = [row for row in rows if row["kind"] != ORIGINAL and row["series"] == series[0]]
    text = alt.Chart(data(named)).mark_text(align="left", dx=8, dy=-9, color=style.MUTED)
    names = text.encode(x=x, y=y, text="name:N")
    return alt.LayerChart(layer=[line, dots, names]).properties(
        title=alt.TitleParams("Answers found against the cost on text"),
        description="Every policy of the calibration: answers found over the loss on text.",
    )


def by_heads(tables: Tables) -> alt.LayerChart | None:
    """Return what is found with all heads, fewer and fewer; None if that was not tried."""
    rows = _rows(tables)
    whole = [str(p["name"]) for p in tables.points if not _has_fewer_heads(p["name"])]
    beside = tables.kept if tables.kept in whole else whole[-1]
    shown = [
        row
        for row in rows
        if row["heads"] and (row["name"] == beside or _has_fewer_heads(row["name"]))
    ]
    if len({row["name"] for row in shown}) < 2:
        return None
    colour = _colour(_series(rows))
    x = alt.X(
        "heads:Q",
        title="heads changed",
        scale=alt.Scale(type="log", base=2, nice=False, padding=14),
        axis=alt.Axis(values=sorted({row["heads"] for row in shown}), format="d"),
    )
    y = alt.Y("retrieval:Q", title="answers found", axis=_percent(".0%"), scale=_from_zero())
    line = alt.Chart(data(shown)).mark_line(strokeWidth=2, point={"size": 40, "filled": True})
    plain = alt.Chart(data([row for row in rows if row["kind"] == ORIGINAL]))
    return alt.LayerChart(
        layer=[
            plain.mark_rule(strokeDash=[4, 3]).encode(y=y, color=colour),
            line.encode(x=x, y=y, color=colour, tooltip=_told()),
        ]
    ).properties(
        title=alt.TitleParams(
            "Answers found with fewer heads", subtitle="dashed: the original model"
        ),
        description="Answers found over the number of heads that the policy changes.",
    )


def _rows(tables: Tables) -> list[dict[str, Any]]:
    """Return what every policy finds and costs: by length if they were compared, else looked at."""
    plain = {"name": PLAIN, "heads": 0, "text_cost": 0.0, "retrieval": tables.plain["retrieval"]}
    points: list[Row] = [plain, *tables.points]
    shares, text = tables.shares(), {(row["case"], row["length"]): row for row in tables.text()}
    rows = []
    for point in points:
        name = str(point["name"])
        kind = FEWER if _has_fewer_heads(name) else ORIGINAL if point is plain else EVERY
        row = {"name": name, "heads": point["heads"], "kind": KEPT if name == tables.kept else kind}
        for share in shares:
            length = share["length"]
            if share["case"] == name and (name, length) in text:
                cost = text[name, length]["value"] / text[PLAIN, length]["value"] - 1
                found = {"retrieval": share["value"], "text_cost": cost}
                rows.append({**row, **found, "series": f"{length:,} tokens"})
        if not shares:
            found = {field: point[field] for field in ("retrieval", "text_cost")}
            rows.append({**row, **found, "series": LOOKED_AT})
    return rows


def _series(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(str(row["series"]) for row in rows))


def _colour(series: Sequence[str]) -> alt.Color:
    """Return the colour of each length, with a legend where there are several."""
    shown = alt.Legend(title=None, columns=2, symbolType="stroke", symbolOpacity=1)
    legend = shown if len(series) > 1 else None
    scale = alt.Scale(domain=list(series), range=list(LENGTHS))
    return alt.Color("series:N", scale=scale, legend=legend)


def _told() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("name:N", title="policy"),
        alt.Tooltip("series:N", title="prompts"),
        alt.Tooltip("heads:Q", title="heads changed"),
        alt.Tooltip("retrieval:Q", title="answers found", format=".1%"),
        alt.Tooltip("text_cost:Q", title="loss on text", format="+.2%"),
    ]


def _has_fewer_heads(name: str) -> bool:
    return name.endswith("heads")


def _percent(form: str) -> alt.Axis:
    return alt.Axis(format=form)


def _from_zero() -> alt.Scale:
    return alt.Scale(domainMin=0)
