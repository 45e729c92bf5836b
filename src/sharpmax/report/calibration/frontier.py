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
ROOM = 0.16, 0.06
"""What a name takes of the width, and of the height."""
LOOKED_AT = "those looked at"
"""Prompts that nothing was fitted to, of two lengths, by which policies are chosen."""


def frontier(tables: Tables) -> alt.LayerChart:
    """Return what every policy finds over what text pays under it, a line a length."""
    rows = _rows(tables)
    series = _series(rows)
    x = alt.X("text_cost:Q", title="loss on text over the original model's", axis=_percent(".2~%"))
    y = alt.Y("retrieval:Q", title="answers found", axis=_percent(".0%"), scale=_whole())
    kinds = [kind for kind in SHAPES if any(row["kind"] == kind for row in rows)]
    shape = alt.Shape(
        "kind:N",
        scale=alt.Scale(domain=kinds, range=[SHAPES[kind] for kind in kinds]),
        legend=alt.Legend(
            title=None, columns=2, symbolSize=90, symbolFillColor=style.MUTED, symbolStrokeWidth=0
        ),
    )
    way = alt.Chart(data([row for row in rows if not _has_fewer_heads(row["name"])]))
    line = way.mark_line(strokeWidth=1.5, opacity=0.5).encode(x=x, y=y, color=_colour(series))
    every = alt.Chart(data(rows)).mark_point(size=90, opacity=1, filled=True)
    dots = every.encode(x=x, y=y, color=_colour(series), shape=shape, tooltip=_told())
    bars = alt.Chart(data([row for row in rows if "low" in row])).mark_rule(opacity=0.5)
    sure = bars.encode(x=x, y="low:Q", y2="high:Q", color=_colour(series))
    text = alt.Chart(data(_named(rows))).mark_text(align="left", dx=8, dy=-9, color=style.MUTED)
    names = text.encode(x=x, y=y, text="name:N")
    return alt.LayerChart(layer=[line, sure, dots, names]).properties(
        title=alt.TitleParams(
            "Answers found against the cost on text",
            subtitle="bars: 95 % intervals" if tables.are_compared else "",
        ),
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
    y = alt.Y("retrieval:Q", title="answers found", axis=_percent(".0%"), scale=_whole())
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
    shares, paid = tables.shares() if tables.are_compared else [], tables.paid()
    rows = []
    for point in points:
        name = str(point["name"])
        kind = FEWER if _has_fewer_heads(name) else ORIGINAL if point is plain else EVERY
        row = {"name": name, "heads": point["heads"], "kind": KEPT if name == tables.kept else kind}
        for share in shares:
            length = share["length"]
            if share["case"] == name and (name, length) in paid:
                found = {"retrieval": share["value"], "text_cost": paid[name, length]}
                found |= {"low": share["low"], "high": share["high"]}
                rows.append({**row, **found, "series": f"{length:,} tokens"})
        if not shares:
            found = {field: point[field] for field in ("retrieval", "text_cost")}
            rows.append({**row, **found, "series": LOOKED_AT})
    return rows


def _named(rows: Sequence[Row]) -> list[Row]:
    """Return whose name stands beside its dot: what is kept first, and no name on another."""
    wide = max(row["text_cost"] for row in rows) - min(row["text_cost"] for row in rows)
    named: list[Row] = []
    for row in sorted(rows, key=lambda row: (row["kind"] != KEPT, row["kind"] == FEWER)):
        near = (
            abs(row["text_cost"] - other["text_cost"]) < ROOM[0] * wide
            and abs(row["retrieval"] - other["retrieval"]) < ROOM[1]
            for other in named
        )
        is_first = row["series"] == rows[0]["series"]
        if is_first and row["kind"] != ORIGINAL and not any(near):
            named.append(row)
    return named


def _series(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(str(row["series"]) for row in rows))


def _colour(series: Sequence[str]) -> alt.Color:
    """Return the colour of each length, with a legend where there are several."""
    shown = alt.Legend(title=None, columns=1, symbolType="stroke", symbolOpacity=1)
    legend = None if LOOKED_AT in series else shown
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


def _whole() -> alt.Scale:
    return alt.Scale(domain=[0, 1])
