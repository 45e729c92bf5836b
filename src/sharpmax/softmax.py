"""Sharpened softmax: a drop-in for softmax whose temperature a policy chooses row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sharpmax.arrays import is_torch, namespace
from sharpmax.policies import PAPER
from sharpmax.policy import Policy, require_policy
from sharpmax.rows import LogitRows
from sharpmax.sink import sink_shares
from sharpmax.statistics import RowStatistics

if TYPE_CHECKING:
    from sharpmax.arrays import Array
    from sharpmax.policy import Rows


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
            negative number. A row with nothing left is all zeros. The sink, if the policy
            sets it apart, is the first entry that is left.
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
    if policy.sets_sink_apart:
        return weights_apart(rows, policy).weights
    return rows.softmax(policy(rows))


class Apart(NamedTuple):
    """The weights of rows whose sink stands apart.

    Attributes:
        weights: In the caller's shape and dtype.
        beta: Of the others.
        share: The sink's.
        others: The rows without it.
    """

    weights: Array
    beta: Array | float
    share: Array
    others: LogitRows


def weights_apart(rows: LogitRows, policy: Policy) -> Apart:
    """Return the weights where the first visible entry stands apart, and β is for the others."""
    others, logit, first = rows.apart()
    known: Rows = others
    if "entropy_at" not in policy.reads:
        known = RowStatistics(*others.summary(), others.length)
    share, rest = sink_shares(policy, known, logit)
    beta = policy(known)
    xp = namespace(share)
    of_sink, of_others = (xp.expand_dims(x, axis=rows.axis) for x in (share, rest))
    weights = of_others * others.softmax(beta) + xp.where(first, of_sink, 0.0)
    return Apart(xp.astype(weights, rows.logits.dtype, copy=False), beta, share, others)
