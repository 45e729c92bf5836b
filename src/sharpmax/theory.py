"""The paper's bounds: how sharp softmax attention can be, and at which length it blurs.

Throughout, δ is the spread of a row's logits (largest minus smallest), n its length and
β = 1/θ its inverse temperature. They may be numbers or arrays.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

from sharpmax.arrays import Array, namespace
from sharpmax.rows import LogitRows

if TYPE_CHECKING:
    from typing import TypeAlias

    Number: TypeAlias = float | Array


def weight_bounds(spread: Number, length: Number, beta: Number = 1.0) -> tuple[Number, Number]:
    """Return the least and the largest weight that an item can have (Lemma 2.1).

    exp(−βδ)/n ≤ weight ≤ exp(βδ)/n: whatever the logits within their spread, every weight is
    of the order of 1/n. An upper bound above 1 says nothing.
    """
    _require_at_least(0, spread=spread, beta=beta)
    _require_at_least(1, length=length)
    return _exp(-beta * spread) / length, _exp(beta * spread) / length


def dispersion_length(spread: Number, weight: Number, beta: Number = 1.0) -> Number:
    """Return the length n beyond which every weight is below `weight` (Theorem 2.2).

    n = exp(βδ)/ε, with ε the weight. A head of spread 5.69 cannot put half of its weight on
    any one of more than 592 items.
    """
    _require_at_least(0, spread=spread, beta=beta)
    if isinstance(weight, int | float) and not 0 < weight <= 1:
        raise ValueError(f"weight must be above 0 and at most 1, got {weight}")
    return _exp(beta * spread) / weight


def spread_bound(
    query_matrix: Array,
    key_matrix: Array,
    query_norm: Number,
    key_norm: Number,
    scale: Number = 1.0,
) -> Number:
    """Return the largest spread that a head's weights allow (Proposition 3.1).

    δ ≤ 2·σ_max(Q)·σ_max(K)·‖y‖·max‖xᵢ‖, times the scale of the logits: a head that is to be
    sharp at any length needs weights without bound.

    Args:
        query_matrix: Q, or a stack of such matrices.
        key_matrix: K, likewise.
        query_norm: ‖y‖, the norm of the vector that the query is made from.
        key_norm: max‖xᵢ‖, the largest norm of a vector that a key is made from.
        scale: What the dot products are multiplied by, usually 1/√d.
    """
    return (
        2
        * scale
        * _spectral_norm(query_matrix)
        * _spectral_norm(key_matrix)
        * query_norm
        * key_norm
    )


def entropy_slope(
    logits: Array, beta: Number = 1.0, axis: int = -1, where: Array | None = None
) -> Array:
    """Return dH/dβ = −β·Var_p(s) for p = softmax(β·s), never positive (Proposition 3.2)."""
    return LogitRows.of(logits, axis, where).entropy_at(beta)[1]


def beta_to_keep_weight(
    length: Number, reference_length: Number, spread: Number, beta: Number = 1.0
) -> Number:
    """Return the β at which an item keeps at length n the weight that it had at length n₀.

    The item stands δ above all others, so that its weight is 1/(1 + (n − 1)·exp(−βδ)), which
    stays what it was at n₀ and β₀ if β = β₀ + ln((n − 1)/(n₀ − 1))/δ. It is the inverse of
    dispersion: `LogLength` with slope 1/δ follows it.
    """
    _require_at_least(2, length=length, reference_length=reference_length)
    _require_at_least(0, beta=beta)
    if isinstance(spread, int | float) and not spread > 0:
        raise ValueError(f"spread must be above 0 to keep a weight, got {spread}")
    return beta + _log((length - 1) / (reference_length - 1)) / spread


def _spectral_norm(matrix: Array) -> Array:
    return namespace(matrix).linalg.matrix_norm(matrix, ord=2)


def _exp(exponent: Number) -> Number:
    if not isinstance(exponent, int | float):
        return namespace(exponent).exp(exponent)
    return math.inf if exponent > math.log(sys.float_info.max) else math.exp(exponent)


def _log(value: Number) -> Number:
    return math.log(value) if isinstance(value, int | float) else namespace(value).log(value)


def _require_at_least(least: float, **values: Number) -> None:
    """Raise a ValueError that names the argument if a number is below `least`, or NaN."""
    for name, value in values.items():
        if isinstance(value, int | float) and not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
