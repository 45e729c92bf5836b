"""The table of a diagnosis as the figures read it: every head of every case at every length."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import altair as alt

from sharpmax.report import style
from sharpmax.report.chart import data
from sharpmax.report.rows import Row, mean_by

MEASURES = {
    "entropy": "entropy, nats",
    "share": "entropy over ln n",
    "largest": "largest weight",
    "first": "weight on the first token",
    "near": "weight on the last 32",
    "bound": "bound exp(βδ)/n",
    "spread": "spread δ of the logits",
    "beta": "β",
    "half_length": "half-length 2·exp(βδ)",
}
"""What was measured of a head, and what a tooltip calls it."""

LONGEST_HALF_LENGTH = 1e9
"""Where half-lengths are cut off: 2·exp(βδ) has no end, but an axis needs one."""

# Okabe and Ito's colours; sinks, which do least, are grey.
KINDS = {
    "sink": style.POLICIES["softmax"],
    "local": style.POLICIES["paper"],
    "sharp": style.POLICIES["log length"],
    "steady": style.POLICIES["fitted"],
    "disperses": style.POLICIES["entropy cap"],
}


@dataclass(frozen=True)
class Heads:
    """The heads of one case or several.

    Args:
        rows: case, length, layer, head, kind and `MEASURES`; numbers that are not finite are
            None. The kind is what the head is at the longest length, and `position` the share
            of the case's heads whose half-length at that length is no longer.
    """

    rows: Sequence[dict[str, Any]]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Heads":
        """Return a diagnosis's rows, fit for a page."""
        if not rows:
            raise ValueError("rows must hold at least one head, got none")
        ordered = sorted(rows, key=lambda row: int(row["length"]))
        kinds = {_place(row): str(row["kind"]) for row in ordered}  # the last one stays
        positions = _positions(ordered)
        return cls(
            [
                {
                    "case": str(row["case"]),
                    **{name: int(row[name]) for name in ("length", "layer", "head")},
                    "kind": kinds[_place(row)],
                    **{name: _number(row[name]) for name in MEASURES if name != "half_length"},
                    "half_length": _number(_half_length(row)),
                    "position": _number(position),
                }
                for row, position in zip(ordered, positions, strict=True)
            ]
        )

    @cached_property
    def cases(self) -> list[str]:
        """Every case, in the order in which they are met."""
        return list(dict.fromkeys(row["case"] for row in self.rows))

    @cached_property
    def lengths(self) -> list[int]:
        """Every length that was measured, in order."""
        return sorted({row["length"] for row in self.rows})

    @cached_property
    def kinds(self) -> dict[str, style.Line]:
        """How each kind that occurs is drawn; one that is not known takes a spare colour."""
        met = dict.fromkeys(row["kind"] for row in self.rows)
        own = [kind for kind in met if kind not in KINDS]
        spare = {kind: style.SPARE[i % len(style.SPARE)] for i, kind in enumerate(own)}
        return {**{kind: KINDS[kind] for kind in KINDS if kind in met}, **spare}

    @cached_property
    def data(self) -> dict[str, alt.InlineData]:
        """Each case's rows as data: the same for all charts, so that a page holds them once."""
        return {case: data(row for row in self.rows if row["case"] == case) for case in self.cases}

    @cached_property
    def means(self) -> list[dict[str, Any]]:
        """The means over all heads, by case and length."""
        known = [{k: math.nan if v is None else v for k, v in row.items()} for row in self.rows]
        means = mean_by(known, ["case", "length"], *MEASURES)
        return [{key: _number(value) for key, value in row.items()} for row in means]

    def at(self, case: str, length: int) -> list[dict[str, Any]]:
        """Return the heads of a case at a length."""
        return [row for row in self.rows if row["case"] == case and row["length"] == length]

    def lengths_of(self, case: str) -> list[int]:
        """Return the lengths at which a case was measured."""
        return sorted({row["length"] for row in self.rows if row["case"] == case})

    def counts(self, case: str) -> Counter[str]:
        """Return how many heads of a case are of each kind at its longest length."""
        return Counter(row["kind"] for row in self.at(case, self.lengths_of(case)[-1]))


def tooltip() -> list[alt.Tooltip]:
    """Return what a head tells when it is pointed at."""
    places = [alt.Tooltip(f"{name}:N") for name in ("layer", "head", "kind")]
    return [*places, alt.Tooltip("length:Q", title="tokens", format=",d"), *told()]


def told() -> list[alt.Tooltip]:
    """Return a tooltip's lines for the measures."""
    return [
        alt.Tooltip(f"{name}:Q", title=title, format=",.3~r") for name, title in MEASURES.items()
    ]


def half_length_text(tokens: float | None) -> str:
    """Return a half-length as a table shows it."""
    if tokens is None:
        return "–"
    return "over 10⁹" if tokens >= LONGEST_HALF_LENGTH else f"{tokens:,.0f}"


def _place(row: Row) -> tuple[str, int, int]:
    return str(row["case"]), int(row["layer"]), int(row["head"])


def _half_length(row: Row) -> float:
    return min(float(row["half_length"]), LONGEST_HALF_LENGTH)


def _positions(rows: Sequence[Row]) -> list[float]:
    """Return for each row how many of its case and length have a half-length no longer."""
    groups: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[str(row["case"]), int(row["length"])].append(index)
    positions = [0.0] * len(rows)
    for group in groups.values():
        for rank, index in enumerate(sorted(group, key=lambda i: _half_length(rows[i])), 1):
            positions[index] = rank / len(group)
    return positions


def _number(value: Any) -> Any:
    """Return a number to four digits; None where it is not finite, and what is no number as is."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.4g}") if math.isfinite(value) else None
