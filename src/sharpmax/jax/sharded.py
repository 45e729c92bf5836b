"""Keys and values that are sharded over the devices of a mesh's axis.

Every device sums up its own keys for every row. The sums are merged over the devices, the policy
chooses β from the whole, and each device adds what its own values weigh.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from sharpmax.jax.betas import betas
from sharpmax.jax.chunked import by_chunks, row_statistics
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
    own = scores.key.shape[1]
    scores = replace(scores, first_key=jax.lax.axis_index(axis_name) * own)
    whole = merged(row_statistics(scores), axis_name)
    beta = betas(policy, whole)
    top = jnp.where(whole.max == -math.inf, 0.0, jax.lax.stop_gradient(whole.max))

    def of(part: Scores, values: Array, beta: Array, top: Array) -> tuple[Array, Array]:
        visible = part.visible()
        below = jnp.maximum(part.logits() - top[..., None], LOWEST)
        weights = jnp.exp(beta[..., None] * below)
        if visible is not None:
            weights = jnp.where(visible, weights, 0.0)
        return weighted(weights, values.astype(weights.dtype)), weights.sum(-1)

    out, total = by_chunks(scores, value, of, (beta, top))
    out, total = jax.lax.psum((out, total), axis_name)  # type: ignore[no-untyped-call]
    total = jnp.moveaxis(jnp.where(total == 0, 1.0, total), 1, 2)[..., None]
    return (out / total).astype(value.dtype), whole


def merged(statistics: RowStatistics, axis_name: str) -> RowStatistics:
    """Return the statistics of the rows that all devices' keys make together."""
    gathered = jax.tree.map(lambda array: jax.lax.all_gather(array, axis_name), statistics)
    count = gathered.lse.shape[0]
    parts = [jax.tree.map(lambda array, i=i: array[i], gathered) for i in range(count)]
    whole: Any = functools.reduce(RowStatistics.merge, parts)
    return RowStatistics(*whole)
