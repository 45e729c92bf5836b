"""Rows of logits at hand: their statistics, and their softmax at any temperature.

Everything is computed on z = s − max(s), never on the logits themselves, so that no
exponential overflows and multiplying by β keeps every digit. Masked logits become a very
negative finite number instead of −inf: its exponential is 0 as well, but 0 times it is 0
and not NaN, in the value and in every gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sharpmax.arrays import (
    Array,
    at_least,
    computing_dtype,
    concat_blocks,
    constant,
    first_true,
    hold_ceiling,
    is_jax,
    move_axis,
    namespace,
    require_floating,
    require_mask,
    runs_eagerly_on_cpu,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SMALLEST_BETA = 2.0**-30
"""The least β that is used: rows are uniform by then, and masked logits still get no weight."""

BLOCK_ELEMENTS = 2**18
"""Logits worked on at a time on a CPU: a block and its temporaries stay in the cache."""


@dataclass(frozen=True)
class LogitRows:
    """Rows of logits; each statistic is computed when it is asked for.

    Attributes:
        logits: All rows, in the caller's dtype: of shape (rows, length), but JAX's, any of whose
            axes may be sharded, are not laid flat.
        where: Which logits are visible, of the same shape; None where all are.
        shape: The shape of an array with one entry a row.
        axis: The axis of the caller's array that the rows run along.
    """

    logits: Array
    where: Array | None
    shape: tuple[int, ...]
    axis: int

    @classmethod
    def of(cls, logits: Array, axis: int = -1, where: Array | None = None) -> LogitRows:
        """Take the rows of `logits` along `axis`, or say which argument does not fit."""
        require_floating(logits, "logits")
        if not isinstance(axis, int):
            raise TypeError(f"axis must be an int, got {axis!r}")
        if not -logits.ndim <= axis < logits.ndim:
            raise ValueError(f"axis must be one of the {logits.ndim} axes of logits, got {axis}")
        if logits.shape[axis] == 0:
            raise ValueError(
                f"logits must not be empty along axis {axis}, got shape {tuple(logits.shape)}"
            )
        xp = namespace(logits)
        rows = move_axis(logits, axis, -1)
        shape = tuple(rows.shape[:-1])
        flat = tuple(rows.shape) if is_jax(logits) else (math.prod(shape), rows.shape[-1])
        if where is not None:
            where = require_mask(where, "where", logits)
            where = xp.reshape(move_axis(where, axis, -1), flat)
        return cls(xp.reshape(rows, flat), where, shape, axis)

    def summary(self) -> tuple[Array, Array, Array]:
        """Return the maximum, the log-sum-exp and the entropy of every row, in one pass."""
        parts = [_summary(logits) for logits, _ in self._blocks()]
        maximum, lse, entropy = (self._per_row(part) for part in zip(*parts, strict=True))
        return maximum, lse, entropy

    @property
    def max(self) -> Array:
        """The largest visible logit; −inf where there is none."""
        return self.summary()[0]

    @property
    def lse(self) -> Array:
        """The log-sum-exp, ln Σ exp(s); −inf where nothing is visible."""
        return self.summary()[1]

    @property
    def entropy(self) -> Array:
        """The entropy H of softmax(s), in nats; 0 where nothing is visible."""
        return self.summary()[2]

    @property
    def mean(self) -> Array:
        """The mean logit under the row's own softmax, Σ p·s = lse − H."""
        _, lse, entropy = self.summary()
        return lse - entropy

    @property
    def length(self) -> Array:
        """How many logits are visible, as a floating number."""
        return self._per_row([_length(logits) for logits, _ in self._blocks()])

    def entropy_at(self, beta: Array | float) -> tuple[Array, Array]:
        """Return the entropy H of softmax(β·s) and its slope dH/dβ = −β·Var_p(s)."""
        parts = [_entropy_at(logits, b) for logits, b in self._blocks(beta)]
        entropy, slope = (self._per_row(part) for part in zip(*parts, strict=True))
        return entropy, slope

    def detached(self) -> LogitRows:
        """Return the same rows as constants, which no gradient flows through."""
        return replace(self, logits=constant(self.logits))

    def apart(self) -> tuple[LogitRows, Array, Array]:
        """Return the rows without their first visible logit, that logit, and where it is.

        The logit is −inf where nothing is visible; where it is, is told in the caller's shape.
        """
        xp = namespace(self.logits)
        seen = ~(self.logits <= xp.finfo(self.logits.dtype).min)
        seen = seen if self.where is None else seen & self.where
        first = first_true(seen)
        logits = xp.astype(self.logits, computing_dtype(self.logits), copy=False)
        logit = xp.sum(xp.where(first, logits, 0.0), axis=-1, keepdims=True)
        logit = xp.where(xp.any(first, axis=-1, keepdims=True), logit, -math.inf)
        return replace(self, where=seen & ~first), self._per_row([logit]), self._as_given(first)

    def softmax(self, beta: Array | float) -> Array:
        """Return softmax(β·s) in the caller's shape and dtype; zeros where nothing is visible."""
        blocks = (_softmax(logits, b) for logits, b in self._blocks(beta))
        return self._as_given(concat_blocks(blocks, like=self.logits))

    def _as_given(self, rows: Array) -> Array:
        """Return an array of as many rows in the caller's shape."""
        rows = namespace(rows).reshape(rows, (*self.shape, rows.shape[-1]))
        return move_axis(rows, -1, self.axis)

    def _blocks(self, beta: Array | float = 1.0) -> Iterator[tuple[Array, Array | float]]:
        """Yield blocks of rows, masked logits at −inf, each with its rows' β as a column."""
        xp = namespace(self.logits)
        *lead, length = self.logits.shape
        rows = math.prod(lead)
        size = max(1, BLOCK_ELEMENTS // length if runs_eagerly_on_cpu(self.logits) else rows)
        beta = at_least(SMALLEST_BETA, beta)
        if not isinstance(beta, int | float):
            beta = xp.reshape(xp.broadcast_to(beta, self.shape), (*lead, 1))
        if size >= rows:
            yield self._visible(...), beta
            return
        ceiling = hold_ceiling(self.logits[:size])
        for start in range(0, rows, size):
            block = slice(start, start + size)
            yield self._visible(block), beta if isinstance(beta, int | float) else beta[block]
        del ceiling

    def _visible(self, block: Any) -> Array:
        """Return the logits of some rows, those that are masked at −inf."""
        xp = namespace(self.logits)
        logits = self.logits[block]
        return logits if self.where is None else xp.where(self.where[block], logits, -math.inf)

    def _per_row(self, blocks: Iterable[Array]) -> Array:
        """Join the blocks of a column with one entry a row, in the caller's shape."""
        xp = namespace(self.logits)
        return xp.reshape(xp.concat(list(blocks)), self.shape)


def _below_max(logits: Array) -> tuple[Array, Array]:
    """Return z = s − max(s) and the maximum, −inf where nothing is visible.

    The maximum is only a point of reference in z, so no gradient flows through it there.
    """
    xp = namespace(logits)
    hidden = xp.finfo(logits.dtype).min
    computing = computing_dtype(logits)
    if computing != logits.dtype:
        # A half precision's most negative number would be an ordinary one in float32.
        logits = xp.where(logits <= hidden, -math.inf, xp.astype(logits, computing))
    maximum = xp.max(logits, axis=-1, keepdims=True)
    nothing = maximum <= hidden
    reference = constant(xp.where(nothing, 0.0, maximum))
    # The square of this floor, or β times it, is still finite.
    floor = -math.sqrt(xp.finfo(logits.dtype).max)
    z = xp.clip(logits - reference, min=floor)
    return z, xp.where(nothing, -math.inf, maximum)


def _summary(logits: Array) -> tuple[Array, Array, Array]:
    """Return max, lse = m + ln l and H = ln l − u/l, where l = Σeᶻ and u = Σ z·eᶻ."""
    xp = namespace(logits)
    z, maximum = _below_max(logits)
    exp = xp.exp(z)
    total = xp.sum(exp, axis=-1, keepdims=True)
    log_total = xp.log(_or_one(total))
    entropy = log_total - xp.sum(exp * z, axis=-1, keepdims=True) / _or_one(total)
    return maximum, constant(maximum) + log_total, entropy


def _entropy_at(logits: Array, beta: Array | float) -> tuple[Array, Array]:
    xp = namespace(logits)
    z, _ = _below_max(logits)
    exp = xp.exp(beta * z)
    total = xp.sum(exp, axis=-1, keepdims=True)
    probability = exp / _or_one(total)
    mean = xp.sum(probability * z, axis=-1, keepdims=True)
    deviation = z - mean
    variance = xp.sum(probability * deviation * deviation, axis=-1, keepdims=True)
    return xp.log(_or_one(total)) - beta * mean, -beta * variance


def _softmax(logits: Array, beta: Array | float) -> Array:
    xp = namespace(logits)
    z, _ = _below_max(logits)
    exp = xp.exp(beta * z)
    weights = exp / _or_one(xp.sum(exp, axis=-1, keepdims=True))
    return xp.astype(weights, logits.dtype, copy=False)


def _length(logits: Array) -> Array:
    xp = namespace(logits)
    visible = ~(logits <= xp.finfo(logits.dtype).min)
    return xp.sum(xp.astype(visible, computing_dtype(logits)), axis=-1, keepdims=True)


def _or_one(total: Array) -> Array:
    """Return `total`, or 1 for a row with nothing visible: such a row's weights are 0/1."""
    return namespace(total).where(total == 0, 1.0, total)
