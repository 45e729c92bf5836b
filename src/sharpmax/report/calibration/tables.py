"""What a calibration's figures are drawn from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sharpmax.report.rows import Row
from sharpmax.report.shares import interval

FOUND = "retrieval"
"""What the tasks of a comparison begin with that are not text."""
PLAIN, CALIBRATED = "plain", "calibrated"
"""What the original model is called among the cases, and the policy that stands for all of ours."""


@dataclass(frozen=True)
class Tables:
    """The tables of a calibration.

    Attributes:
        plain: The original model on what was not fitted to: retrieval and text_loss.
        points: The policies along the way: name, allowed, heads, retrieval, text_cost, … of each.
        kept: The name of the one that is kept, or None.
        chosen: The name of that one, or else of the one that finds most.
        heads: What it does to every head: layer, head, short, long, below, above, sink_short,
            sink_long, sink_below, sink_above and sink_log_power.
        scores: Plain attention, the points by their names, and their rivals beside each other:
            case, task, length, value, low, high and samples of each; empty if they were not
            compared.
    """

    plain: Row
    points: Sequence[Row]
    kept: str | None
    chosen: str
    heads: Sequence[Row]
    scores: Sequence[Row] = ()

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("points must hold at least one policy, got none")

    def point(self, name: str) -> Row:
        """Return the point of that name."""
        return next(point for point in self.points if point["name"] == name)

    def shares(self) -> list[dict[str, Any]]:
        """Return for every case and length the share of answers found, over all templates.

        The interval is Wilson's, as if all prompts were of one kind.
        """
        groups: dict[tuple[str, int], list[Row]] = {}
        for score in self.scores:
            if str(score["task"]).startswith(FOUND):
                groups.setdefault((score["case"], score["length"]), []).append(score)
        return [
            {"case": case, "length": length, **_pooled(members)}
            for (case, length), members in groups.items()
        ]

    def beside(self) -> list[dict[str, Any]]:
        """Return the shares of plain attention, of the rivals, and of the point that is chosen.

        That one is called calibrated; the other points are left out.
        """
        others = {str(point["name"]) for point in self.points} - {self.chosen}
        return [
            {**row, "case": CALIBRATED if row["case"] == self.chosen else row["case"]}
            for row in self.shares()
            if row["case"] not in others
        ]

    def paid(self) -> dict[tuple[str, int], float]:
        """Return by case and length what text pays: its loss over that of plain attention."""
        text = {(str(row["case"]), int(row["length"])): float(row["value"]) for row in self.text()}
        return {
            (case, length): value / text[PLAIN, length] - 1
            for (case, length), value in text.items()
            if (PLAIN, length) in text
        }

    @property
    def are_compared(self) -> bool:
        """Whether plain attention and every point were asked and read at some length."""
        paid = self.paid()
        asked = {row["case"] for row in self.shares() if (row["case"], row["length"]) in paid}
        return {PLAIN, *(str(point["name"]) for point in self.points)} <= asked

    def text(self) -> list[Row]:
        """Return the loss on text of every case and length."""
        return [score for score in self.scores if not str(score["task"]).startswith(FOUND)]


def _pooled(members: Sequence[Row]) -> dict[str, float]:
    count = sum(score["samples"] for score in members)
    value = sum(score["value"] * score["samples"] for score in members) / count
    return {"value": value, **interval(round(value * count), count), "samples": count}
