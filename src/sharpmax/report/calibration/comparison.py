"""Policies beside each other on the same prompts and texts."""

import altair as alt

from sharpmax.report import style
from sharpmax.report.calibration.tables import PLAIN, Tables
from sharpmax.report.chart import data
from sharpmax.report.page import Table
from sharpmax.report.rows import Row, signed

APART = 1.012
"""How many times as far to the right the next policy stands, so that no bar hides another."""


def comparison(tables: Tables) -> alt.LayerChart | None:
    """Return the share of answers found by length, a line a policy, with 95 % intervals."""
    rows = tables.beside()
    if not rows:
        return None
    lengths = sorted({row["length"] for row in rows})
    drawn = style.lines(str(row["case"]) for row in rows)
    middle = (len(drawn) - 1) / 2
    beside = {case: APART ** (place - middle) for place, case in enumerate(drawn)}
    held = alt.Chart(data({**row, "at": row["length"] * beside[row["case"]]} for row in rows))
    x = alt.X(
        "at:Q",
        title="tokens",
        scale=alt.Scale(type="log", base=2, nice=False, padding=12),
        axis=alt.Axis(values=lengths, format=",d"),
    )
    y = alt.Y("value:Q", title="answers found", axis=alt.Axis(format=".0%"))
    told = [
        alt.Tooltip("case:N", title="policy"),
        alt.Tooltip("length:Q", title="tokens", format=",d"),
        alt.Tooltip("value:Q", title="answers found", format=".1%"),
        alt.Tooltip("low:Q", title="from", format=".1%"),
        alt.Tooltip("high:Q", title="to", format=".1%"),
        alt.Tooltip("samples:Q", title="prompts", format=",d"),
    ]
    channels = style.channels(drawn, "case")
    line = held.mark_line(strokeWidth=2, point={"size": 36, "filled": True})
    bar = held.mark_rule(strokeWidth=1.5)
    return alt.LayerChart(
        layer=[
            bar.encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=channels["color"]),
            line.encode(x=x, y=y, tooltip=told, **channels),
        ]
    ).properties(
        title=alt.TitleParams(
            "Answers found, templates held out",
            subtitle="bars: 95 % intervals; lines stand beside each other at each length",
        ),
        description="The share of answers found over the length, by policy.",
    )


def comparison_table(tables: Tables) -> Table | None:
    """Return a row a policy: answers found at each length, then the loss on text."""
    shares = {(row["case"], row["length"]): row for row in tables.shares()}
    text = {(row["case"], row["length"]): row for row in tables.text()}
    cases = list(dict.fromkeys(case for case, _ in (*shares, *text)))
    if not cases:
        return None
    found_at = sorted({length for _, length in shares})
    read_at = sorted({length for _, length in text})
    paid = tables.paid()
    rows = []
    for case in cases:
        cells = [_share(shares.get((case, length))) for length in found_at]
        cells += [
            _text(text.get((case, length)), None if case == PLAIN else paid.get((case, length)))
            for length in read_at
        ]
        rows.append([f"{case} (kept)" if case == tables.kept else str(case), *cells])
    header = [
        "policy",
        *(f"found at {length:,}" for length in found_at),
        *(f"text at {length:,}" for length in read_at),
    ]
    strong = set()
    for column, length in enumerate(found_at, 1):
        values = [shares.get((case, length), {"value": -1})["value"] for case in cases]
        strong |= {(row, column) for row, value in enumerate(values) if value == max(values)}
    asked = sorted({row["samples"] for row in shares.values()})
    told = " to ".join(f"{count:,}" for count in dict.fromkeys([*asked[:1], *asked[-1:]]))
    return Table(
        caption=f"Answers found of {told} prompts a length over all templates, with 95 % "
        "intervals; loss on text over plain's",
        header=header,
        rows=rows,
        strong=strong,
    )


def _share(row: Row | None) -> str:
    if row is None:
        return "–"
    return f"{row['value']:.0%} ({100 * row['low']:.0f}–{100 * row['high']:.0f})"


def _text(row: Row | None, paid: float | None) -> str:
    """Return what text pays, or its loss as it is where there is nothing to compare it with."""
    if row is None:
        return "–"
    return f"{row['value']:.3f} nats" if paid is None else signed(paid, ".1%")
