"""Sharpened softmax: a drop-in for softmax whose temperature a policy chooses row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharpmax.arrays import at_least, is_torch, namespace
from sharpmax.policies import PAPER
from sharpmax.policy import Policy, require_policy
from sharpmax.rows import SMALLEST_BETA, LogitRows

if TYPE_CHECKING:
    from sharpmax.arrays import Array


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
            negative number. A row with nothing left is all zeros. If the policy shifts the sink,
            that is the first entry that is left.
    """
    require_policy(policy)
    rows = LogitRows.of(logits, axis, where)
    if policy.shifts_sink:
        beta = at_least(SMALLEST_BETA, policy(rows))
        weights = rows.first_shifted(policy.sink_shift(rows) / beta).softmax(beta)
        return namespace(logits).astype(weights, logits.dtype, copy=False)
    if is_torch(logits) and logits.is_cuda:
        from sharpmax.torch.softmax import fused_softmax

        weights = fused_softmax(rows, policy)
        if weights is not None:
            return weights
    return rows.softmax(policy(rows))
