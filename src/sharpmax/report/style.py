"""How the project's charts look: one palette, safe for the colour-blind, in light and in dark.

Charts are drawn in the light colours. `DARK` gives for each of them the one that takes its place
on a dark ground, so a page goes dark by exchanging colours and needs no second chart.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

INK, MUTED, GRID = "#1c2024", "#5b626a", "#e4e7ea"
PAPER, CARD, ACCENT = "#fdfdfc", "#ffffff", "#0b63a5"
MARK = "#e8590c"  # what is pointed at on a heat map
HEAT = ("#f3f6f9", "#b9d3ea", "#6aa5d2", "#2c6fae", "#0a3a73")  # weight 0 to weight 1
DIVERGING = ("#8c510a", "#f5f4f0", "#01665e")  # blunter, as it was, sharper


@dataclass(frozen=True)
class Line:
    """How a policy is drawn; dashes tell apart the lines that lie on each other."""

    light: str
    dark: str
    dash: tuple[int, ...] = (1, 0)


# Okabe and Ito's colours, with softmax and argmax in grey and black.
POLICIES: Mapping[str, Line] = {
    "softmax": Line("#7a828b", "#a3abb4"),
    "plain": Line("#7a828b", "#a3abb4"),
    "paper": Line("#0072b2", "#4ba3e3"),
    "held": Line("#56b4e9", "#a5dcff", (7, 3)),
    "log length": Line("#009e73", "#35c99c"),
    "fitted": Line("#cc79a7", "#eba3cb", (4, 2)),
    "monotone": Line("#e69f00", "#f5c34d", (9, 3, 2, 3)),
    "entropy cap": Line("#d55e00", "#ff8f45"),
    "argmax": Line("#24292f", "#f2f4f6", (2, 3)),
}
# For policies of the user's own: Tol's muted colours.
SPARE: Sequence[Line] = (
    Line("#882255", "#d977a8"),
    Line("#44aa99", "#7fd6c8", (6, 2)),
    Line("#332288", "#9f92ef"),
    Line("#999933", "#cccc66", (6, 2)),
    Line("#aa4499", "#e08ad3", (3, 2)),
    Line("#117733", "#5cbf7e"),
    Line("#cc6677", "#f0a0ad", (6, 2)),
    Line("#88ccee", "#b5e2f7"),
    Line("#ddcc77", "#f0e3a5", (3, 2)),
)

DARK: Mapping[str, str] = {
    INK: "#e6e9ec",
    MUTED: "#9aa3ac",
    GRID: "#2b3138",
    PAPER: "#14171a",
    CARD: "#1a1e22",
    ACCENT: "#6cb6f5",
    MARK: "#ff9a52",
    **dict(zip(HEAT, ("#20262c", "#27496b", "#3377b0", "#6fb4e6", "#e8f5ff"), strict=True)),
    **dict(zip(DIVERGING, ("#e0a458", "#22272c", "#5cc6b8"), strict=True)),
    **{line.light: line.dark for line in (*POLICIES.values(), *SPARE)},
}

CONFIG: Mapping[str, Any] = {
    "background": "transparent",
    "font": "Helvetica Neue, Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": MUTED,
        "titleColor": MUTED,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelFontSize": 11,
        "titleFontSize": 11.5,
        "domainColor": GRID,
        "tickColor": GRID,
        "gridColor": GRID,
        "labelOverlap": True,
        "labelSeparation": 6,
        "labelPadding": 6,
    },
    "axisX": {"grid": False},
    "axisY": {"domain": False, "ticks": False, "tickCount": 5},
    "header": {"labelColor": MUTED, "labelFontSize": 11, "titleColor": MUTED},
    "legend": {
        "orient": "bottom",
        "columns": 4,
        "columnPadding": 18,
        "labelColor": INK,
        "labelFontSize": 11.5,
        "labelLimit": 240,
        "titleColor": MUTED,
        "titleFontSize": 11.5,
        "titleFontWeight": "normal",
        "symbolStrokeWidth": 2.5,
        "symbolSize": 300,
        "gradientThickness": 10,
    },
    "title": {
        "anchor": "start",
        "color": INK,
        "fontSize": 13,
        "fontWeight": 600,
        "offset": 14,
        "subtitlePadding": 4,
        "subtitleColor": MUTED,
        "subtitleFontSize": 11.5,
    },
    "text": {"color": MUTED, "fontSize": 11},
}


def ordered(policies: Iterable[str]) -> list[str]:
    """Return the policies without repeats: plain softmax first, the user's own, argmax last.

    Known ones come in the palette's order and a user's own in the order in which they are met.
    """
    met = dict.fromkeys(policies)
    known = [policy for policy in POLICIES if policy in met and policy != "argmax"]
    own = [policy for policy in met if policy not in POLICIES]
    return known + own + [policy for policy in ("argmax",) if policy in met]


def lines(policies: Iterable[str]) -> dict[str, Line]:
    """Return how to draw each policy, in order; the user's own take spare colours in turn."""
    names = ordered(policies)
    own = [name for name in names if name not in POLICIES]
    spare = {name: SPARE[index % len(SPARE)] for index, name in enumerate(own)}
    return {name: POLICIES.get(name) or spare[name] for name in names}


def channels(drawn: Mapping[str, Line], field: str = "policy") -> dict[str, Any]:
    """Return the encodings that give every policy's line its colour and dash, and the legend."""
    names = list(drawn)
    colours = alt.Scale(domain=names, range=[line.light for line in drawn.values()])
    dashes = alt.Scale(domain=names, range=[list(line.dash) for line in drawn.values()])
    legend = alt.Legend(title=None, symbolType="stroke")
    return {
        "color": alt.Color(f"{field}:N", scale=colours, legend=legend),
        "strokeDash": alt.StrokeDash(f"{field}:N", scale=dashes, legend=legend),
    }


def companions(drawn: Mapping[str, Line], field: str = "policy") -> dict[str, Any]:
    """Return `fill` and `stroke` for points and bands that go with the lines, off the legend.

    The nameless last colour is never used: it makes the scale another than the lines', since
    Vega-Lite would otherwise take "no legend" for the lines as well.
    """
    colours = alt.Scale(
        domain=[*drawn, ""], range=[*(line.light for line in drawn.values()), "transparent"]
    )
    return {
        "fill": alt.Fill(f"{field}:N", scale=colours, legend=None),
        "stroke": alt.Stroke(f"{field}:N", scale=colours, legend=None),
    }
