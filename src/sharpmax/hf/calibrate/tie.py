"""How strongly text holds back while a policy is fitted: as much as it takes, and no more."""

from __future__ import annotations

import math

START, LEAST, MOST = 4.0, 1.0, 1000.0
AT_ONCE = 1.0
"""By how much text that has lost twice what it may is held back harder at once, as a logarithm."""
LASTING = 0.1
"""By how much the level changes for it each time."""
MEMORY = 0.5
"""How much of what was seen before is remembered each time."""
FINEST = 0.002
"""A growth of the loss that is still told from none."""


class Tie:
    """The weight of text in the loss.

    It rises while text has lost more than it may, and falls while there is room. A part of that
    passes with its cause, and a part lasts: the level. By its level alone it would swing, since
    text follows it only after some tens of steps.
    """

    def __init__(self, allowed: float, level: float = START) -> None:
        self.allowed, self.level = allowed, level
        self._growth: float | None = None

    @property
    def value(self) -> float:
        """The weight as it is now."""
        return _within(self.level * math.exp(AT_ONCE * self._excess))

    def heed(self, growth: float) -> None:
        """Learn by which share the loss of a step's texts has grown."""
        before = growth if self._growth is None else self._growth
        self._growth = MEMORY * before + (1 - MEMORY) * growth
        self.level = _within(self.level * math.exp(LASTING * self._excess))

    @property
    def _excess(self) -> float:
        """How far text is from what it may lose, from −1 to 1."""
        if self._growth is None:
            return 0.0
        excess = (self._growth - self.allowed) / max(self.allowed, FINEST)
        return max(-1.0, min(1.0, excess))


def _within(value: float) -> float:
    return max(LEAST, min(MOST, value))
