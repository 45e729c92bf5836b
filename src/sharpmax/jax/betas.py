"""The β of every row, from the row's statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

from sharpmax.arrays import at_least
from sharpmax.rows import SMALLEST_BETA

if TYPE_CHECKING:
    from jax import Array

    from sharpmax.policy import Policy
    from sharpmax.statistics import RowStatistics


def betas(policy: Policy, statistics: RowStatistics) -> Array:
    """Return the β that a policy chooses, of shape (batch, heads, queries)."""
    chosen = at_least(SMALLEST_BETA, policy(statistics))
    return jnp.broadcast_to(jnp.asarray(chosen, statistics.lse.dtype), statistics.lse.shape)
