"""What a calibration has found: the policies along the way, and which of them is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sharpmax.hf.calibrate.fit import Check
    from sharpmax.policy import Policy


@dataclass(frozen=True)
class Point:
    """The best policy of one cost, or of one number of heads, on what it was not fitted to.

    Attributes:
        name: Of the policy, and of its file.
        allowed: How much the loss of the text that was fitted to might grow at the full length, as
            a share.
        heads: How many heads are changed.
        steps: How many steps it took from the beginning.
        retrieval: The share of answers that are right.
        answer_loss: The mean loss of their tokens, in nats.
        shortfall: As in `Check`.
        text_loss: The mean loss of text, in nats a token.
        divergence: From the original model's predictions, in nats a token.
        text_cost: The loss of text over the original model's, as a share.
        own: As in `Check`.
    """

    name: str
    allowed: float
    heads: int
    steps: int
    retrieval: float
    answer_loss: float
    shortfall: float
    text_loss: float
    divergence: float
    text_cost: float
    own: float | None = None


@dataclass(frozen=True)
class Calibration:
    """What a calibration has found.

    Attributes:
        plain: The original model.
        points: The policies along the way.
        kept: The one that retrieves most within the text that it may cost, or None if none is
            better than the original model.
        policies: Of all points, by name.
    """

    plain: Check
    points: list[Point]
    kept: Point | None
    policies: dict[str, Policy]

    @property
    def policy(self) -> Policy | None:
        """The policy that is kept."""
        return None if self.kept is None else self.policies[self.kept.name]

    @property
    def chosen(self) -> Point:
        """The policy that is kept, or else the one that retrieves most, whatever text pays."""
        return self.kept or most_found(self.points)


def most_found(points: Sequence[Point]) -> Point:
    """Return the point that retrieves most, of equals the one that falls short least."""
    return max(points, key=lambda point: (point.retrieval, -point.shortfall))
