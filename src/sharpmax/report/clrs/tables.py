"""What the figures of CLRS-Text are drawn from."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sharpmax.report.rows import Row, mean_by
from sharpmax.report.shares import interval

Outcome = Literal["won", "tied", "lost"]


@dataclass(frozen=True)
class Tables:
    """The tables of an evaluation.

    Attributes:
        answers: Of every case, seed, algorithm and size: trained, beyond, right, asked, too_long.
        entropies: Of heads while answers are read: case, size, layer, head, entropy and share of
            each; empty if they were not measured.
    """

    answers: Sequence[Row]
    entropies: Sequence[Row] = ()

    def __post_init__(self) -> None:
        if not self.answers:
            raise ValueError("answers must hold at least one row, got none")

    @property
    def cases(self) -> list[str]:
        """The cases in order; the first is what the others are compared with."""
        return list(dict.fromkeys(row["case"] for row in self.answers))

    @property
    def algorithms(self) -> list[str]:
        """The algorithms, by name."""
        return sorted({row["algorithm"] for row in self.answers})

    def pooled(self, *keys: str, rows: Iterable[Row] | None = None) -> list[dict[str, Any]]:
        """Return right and asked, summed over all rows that agree in the keys, and the share.

        The interval is Wilson's, as if all seeds were one model.
        """
        groups: dict[tuple[Any, ...], tuple[int, int]] = {}
        for row in self.answers if rows is None else rows:
            key = tuple(row[name] for name in keys)
            right, asked = groups.get(key, (0, 0))
            groups[key] = right + row["right"], asked + row["asked"]
        return [
            {
                **dict(zip(keys, key, strict=True)),
                "right": right,
                "asked": asked,
                "share": right / asked,
                **interval(right, asked),
            }
            for key, (right, asked) in groups.items()
            if asked
        ]

    def within(self) -> list[Row]:
        """Return the rows of sizes that were trained on."""
        return [row for row in self.answers if row["trained"]]

    def beyond(self) -> list[Row]:
        """Return the rows of sizes above all that were trained on."""
        return [row for row in self.answers if row["beyond"]]

    def outcomes(self) -> dict[str, dict[str, Outcome]]:
        """Return for every case but the first, by algorithm, how it did beside the first.

        Beyond the sizes that were trained on; tied where the 95 % interval of the difference, by
        Newcombe, holds 0.
        """
        found = {
            (row["case"], row["algorithm"]): row
            for row in self.pooled("case", "algorithm", rows=self.beyond())
        }
        first, *others = self.cases
        return {
            case: {
                algorithm: _outcome(found[case, algorithm], found[first, algorithm])
                for algorithm in self.algorithms
                if (case, algorithm) in found and (first, algorithm) in found
            }
            for case in others
        }

    def entropy_by_size(self) -> list[dict[str, Any]]:
        """Return the mean entropy over all heads, by case and size."""
        return mean_by(self.entropies, ("case", "size"), "entropy", "share")


def _outcome(one: Row, other: Row) -> Outcome:
    difference = one["share"] - other["share"]
    below = math.hypot(one["share"] - one["low"], other["high"] - other["share"])
    above = math.hypot(one["high"] - one["share"], other["share"] - other["low"])
    if difference - below > 0:
        return "won"
    return "lost" if difference + above < 0 else "tied"
