"""Row statistics: what one row of logits tells without keeping the row.

A row of logits s₁ … sₙ is summed up by its maximum, its log-sum-exp, the entropy of its
softmax and its length. The statistics of two parts of a row merge into those of the whole,
which is what streaming, split-key decoding and sequence sharding all need.
"""

from __future__ import annotations

import math
from typing import NamedTuple, NoReturn

from sharpmax.arrays import Array, constant, namespace
from sharpmax.rows import LogitRows


class RowStatistics(NamedTuple):
    """The statistics of rows of logits; each field has one entry a row.

    Being a named tuple, it passes through `jax.jit`, `jax.vmap`, `torch.compile` and
    `torch.func.vmap` as it is.

    Attributes:
        max: The largest logit.
        lse: The log-sum-exp, ln Σ exp(s).
        entropy: The entropy H of p = softmax(s), in nats.
        length: How many logits are visible (not masked), as a floating number.
    """

    max: Array
    lse: Array
    entropy: Array
    length: Array

    @property
    def mean(self) -> Array:
        """The mean logit under the row's own softmax, Σ p·s = lse − H.

        The entropy is stored and the mean derived, not the other way round: the difference
        of two large numbers would lose the digits of a small entropy.
        """
        return self.lse - self.entropy

    @classmethod
    def from_logits(
        cls, logits: Array, axis: int = -1, where: Array | None = None
    ) -> RowStatistics:
        """Return the statistics of `logits` along `axis`.

        Entries where `where` is false, and entries that are −inf or the dtype's most negative
        number, do not count. A row with nothing visible has max and lse −inf, entropy and
        length 0.
        """
        rows = LogitRows.of(logits, axis, where)
        return cls(*rows.summary(), rows.length)

    @classmethod
    def empty_like(cls, array: Array) -> RowStatistics:
        """Return the statistics of rows without a single logit: the identity of `merge`."""
        zeros = namespace(array).zeros_like(array)
        return cls(max=zeros - math.inf, lse=zeros - math.inf, entropy=zeros, length=zeros)

    def detached(self) -> RowStatistics:
        """Return the same statistics as constants, which no gradient flows through."""
        return RowStatistics(*map(constant, self))

    def entropy_at(self, beta: Array | float) -> NoReturn:
        """Refuse: what the entropy is at another temperature, the statistics do not tell."""
        raise TypeError(
            f"the entropy at β = {beta} needs the rows themselves, not only their statistics: "
            "use sharpmax.softmax"
        )

    def merge(self, other: RowStatistics) -> RowStatistics:
        """Return the statistics of the rows that these and `other`'s logits make together.

        The entropy of the whole is the mean entropy of the two parts plus the entropy of the
        choice between them (the chain rule), a part's share being exp(lse − lse of both).
        """
        xp = namespace(self.lse)
        top = constant(xp.maximum(self.lse, other.lse))
        reference = xp.where(top == -math.inf, 0.0, top)
        parts = [(part, xp.exp(part.lse - reference)) for part in (self, other)]
        total = parts[0][1] + parts[1][1]
        safe_total = xp.where(total == 0, 1.0, total)
        lse = reference + xp.log(safe_total)
        entropy = xp.zeros_like(lse)
        for part, size in parts:
            surprise = lse - xp.where(size == 0, lse, part.lse)
            entropy = entropy + size / safe_total * (part.entropy + surprise)
        return RowStatistics(
            max=xp.maximum(self.max, other.max),
            lse=xp.where(total == 0, -math.inf, lse),
            entropy=entropy,
            length=self.length + other.length,
        )
