"""How strongly text holds back while a policy is fitted: as much as it takes, and no more."""

from __future__ import annotations

import math

START, LEAST, MOST = 8.0, 1.0, 1000.0
AGAIN = 3.0
"""What it begins at from a policy that was calibrated before: text has been heeded there."""
QUICKEST = 0.1
"""By how much the tie changes at a time at most, in units of its logarithm."""
MEMORY = 0.9
"""How much of what was seen before is remembered each time."""
FINEST = 0.002
"""A growth of the loss that is still told from none."""


class Tie:
    """The weight of text in the loss.

    It rises while text has lost more than it may, and falls while there is room.
    """

    def __init__(self, allowed: float, value: float = START) -> None:
        self.allowed, self.value = allowed, value
        self._growth: float | None = None

    def heed(self, growth: float) -> None:
        """Learn by which share the loss of a step's texts has grown."""
        before = growth if self._growth is None else self._growth
        self._growth = MEMORY * before + (1 - MEMORY) * growth
        excess = (self._growth - self.allowed) / max(self.allowed, FINEST)
        changed = self.value * math.exp(QUICKEST * max(-1.0, min(1.0, excess)))
        self.value = max(LEAST, min(MOST, changed))
