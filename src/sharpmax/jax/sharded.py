"""Keys and values that are sharded over the devices of a mesh's axis.

Every device sums up its own keys for every row. The sums are merged over the devices, the policy
chooses β from the whole, and each device adds what its own values weigh.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from sharpmax.jax import chunked
from sharpmax.jax.betas import betas
from sharpmax.jax.scores import weighted
from sharpmax.statistics import RowStatistics

if TYPE_CHECKING:
    from jax import Array

    from sharpmax.jax.scores import Scores
    from sharpmax.policy import Policy


LOWEST = -1e18
"""What a logit is below the largest at most: −∞ times a derivative of 0 is no number."""


def attend(
    scores: Scores, value: Array, policy: Policy, axis_name: str
) -> tuple[Array, RowStatistics]:
    """Return softmax(β·logits)·value over the keys of all devices, and their statistics.

    Raises:
        NotImplementedError: If the policy reads more of a row than its statistics.
    """
    if "entropy_at" in policy.reads:
        raise NotImplementedError(
            f"keys that are sharded leave no row whole, from which {type(policy).__name__} "
            "chooses β"
        )
    scores = placed(scores, axis_name)
    whole = merged(chunked.row_statistics(scores), axis_name)
    beta = betas(policy, whole)
    top = jnp.where(whole.max == -math.inf, 0.0, jax.lax.stop_gradient(whole.max))

    def of(part: Scores, values: Array, beta: Array, top: Array) -> tuple[Array, Array]:
        visible = part.visible()
        below = jnp.maximum(part.logits() - top[..., None], LOWEST)
        weights = jnp.exp(beta[..., None] * below)
        if visible is not None:
            weights = jnp.where(visible, weights, 0.0)
        return weighted(weights, values.astype(weights.dtype)), weights.sum(-1)

    out, total = chunked.by_chunks(scores, value, of, (beta, top))
    out, total = _sum(out, axis_name), _sum(total, axis_name)
    total = jnp.moveaxis(jnp.where(total == 0, 1.0, total), 1, 2)[..., None]
    return (out / total).astype(value.dtype), whole


def row_statistics(scores: Scores, axis_name: str) -> RowStatistics:
    """Return the statistics of every row over the keys of all devices."""
    return merged(chunked.row_statistics(placed(scores, axis_name)), axis_name)


def placed(scores: Scores, axis_name: str) -> Scores:
    """Return this device's scores, which know where in the sequence its keys begin."""
    return replace(scores, first_key=jax.lax.axis_index(axis_name) * scores.key.shape[1])


def merged(statistics: RowStatistics, axis_name: str) -> RowStatistics:
    """Return the statistics of the rows that all devices' keys make together.

    As `RowStatistics.merge` does, but by sums, of which JAX knows that they are equal everywhere.
    """
    part = statistics
    top = _top(part.lse, axis_name)
    nothing = top == -math.inf
    reference = jnp.where(nothing, 0.0, top)
    size = jnp.exp(part.lse - reference)
    whole = jnp.where(nothing, 1.0, _sum(size, axis_name))
    lse = reference + jnp.log(whole)
    surprise = lse - jnp.where(size == 0, lse, part.lse)
    return RowStatistics(
        max=_largest(part.max, axis_name),
        lse=jnp.where(nothing, -math.inf, lse),
        entropy=_sum(size / whole * (part.entropy + surprise), axis_name),
        length=_sum(part.length, axis_name),
    )


def _largest(values: Array, axis_name: str) -> Array:
    """Return the largest of all devices' values; those that reach it share its gradient."""
    constant, largest = jax.lax.stop_gradient(values), _top(values, axis_name)
    reach = (values == largest) & jnp.isfinite(largest)
    count = jnp.maximum(_sum(reach.astype(values.dtype), axis_name), 1.0)
    change = jnp.where(reach, values - jnp.where(reach, constant, 0.0), 0.0)
    return largest + _sum(change / count, axis_name)


def _top(array: Array, axis_name: str) -> Array:
    """Return the largest of all devices' numbers as a constant."""
    constant = jax.lax.stop_gradient(array)
    top: Array = jax.lax.pmax(constant, axis_name)  # type: ignore[no-untyped-call]
    return top


def _sum(array: Array, axis_name: str) -> Array:
    total: Array = jax.lax.psum(array, axis_name)  # type: ignore[no-untyped-call]
    return total
