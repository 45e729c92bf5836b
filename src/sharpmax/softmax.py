"""Sharpened softmax: a drop-in for softmax whose temperature a policy chooses row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharpmax.arrays import is_torch, namespace
from sharpmax.policies import PAPER
from sharpmax.policy import Policy, require_policy
from sharpmax.rows import LogitRows

if TYPE_CHECKING:
    from sharpmax.arrays import Array

FAR = 1e30
"""In place of infinity: differences of it are numbers."""
CERTAIN = 80.0
"""The logarithm of odds beyond which there is no doubt in any precision, nor an overflow."""


def softmax(
    logits: Array, policy: Policy = PAPER, axis: int = -1, where: Array | None = None
) -> Array:
    """Return softmax(β·logits) along `axis`, with β chosen for every row by `policy`.

    Args:
        logits: A floating array of NumPy, PyTorch or JAX. Half precisions are computed in
            float32; the result has the dtype of the logits.
        policy: Chooses β from the row's statistics. The default is the adaptive temperature
            of the paper; `Fixed(1.0)` is plain softmax.
        axis: The axis that the weights sum to 1 along.
        where: A boolean array that broadcasts to the logits. Entries where it is false get
            weight 0, as if they were not there; so do logits of −inf and of the dtype's most
            negative number. A row with nothing left is all zeros. If the policy sets the sink
            apart, that is the first entry that is left.
    """
    require_policy(policy)
    rows = LogitRows.of(logits, axis, where)
    if is_torch(logits) and logits.is_cuda and not policy.sets_sink_apart:
        from sharpmax.torch.softmax import fused_softmax

        weights = fused_softmax(rows, policy)
        if weights is not None:
            return weights
    return weights_of(rows, policy)


def weights_of(rows: LogitRows, policy: Policy) -> Array:
    """Return the weights of rows under a policy, in the caller's shape and dtype."""
    return _with_sink_apart(rows, policy) if policy.sets_sink_apart else rows.softmax(policy(rows))


def _with_sink_apart(rows: LogitRows, policy: Policy) -> Array:
    """Return the weights where the first visible entry stands apart, and β is for the others."""
    others, sink = rows.apart()
    xp = namespace(rows.logits)
    plain = xp.clip(sink.lse, min=-FAR) - xp.clip(others.lse, min=-FAR)
    log_odds = policy.sink_log_odds(others, xp.clip(plain, -CERTAIN, CERTAIN))
    share = 1 / (1 + xp.exp(-xp.clip(log_odds, -CERTAIN, CERTAIN)))
    share = xp.expand_dims(share, axis=rows.axis)
    weights = share * sink.softmax(1.0) + (1 - share) * others.softmax(policy(others))
    return xp.astype(weights, rows.logits.dtype, copy=False)
