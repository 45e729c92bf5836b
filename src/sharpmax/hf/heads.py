"""What a head does with the rows of its attention, measured without holding the matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sharpmax.arrays import at_least
from sharpmax.rows import SMALLEST_BETA, LogitRows
from sharpmax.statistics import RowStatistics
from sharpmax.theory import weight_bounds

if TYPE_CHECKING:
    from sharpmax.hf.request import Request
    from sharpmax.policy import Policy
    from sharpmax.torch.scores import Scores

MEASURES = ("entropy", "share", "largest", "first", "near", "beta", "spread", "bound")
"""Each a mean over rows:

entropy: Of the weights, in nats.
share: The entropy over ln n: 1 where all weights are equal.
largest: The largest weight.
first: The weight on the first token, or on the learned sink.
near: The weight on the query's own token and the `NEAR` − 1 before it.
beta: The inverse temperature that the policy chose.
spread: δ, the largest logit less the smallest, before β.
bound: exp(βδ)/n, which no weight can exceed (Lemma 2.1), at most 1.
"""

NEAR = 32
CHUNK_ELEMENTS = {"cpu": 2**21, "cuda": 2**26}
"""Logits made at a time, over all heads."""


@torch.no_grad()
def measured(request: Request, policy: Policy, queries: slice) -> Tensor:
    """Return the sums of `MEASURES` over some rows, of shape (measures, heads), in float64."""
    scores, policy = request.scores(), request.followed(policy)
    batch, heads, _ = scores.shape
    most = CHUNK_ELEMENTS.get(scores.query.device.type, CHUNK_ELEMENTS["cuda"])
    size = max(1, most // (batch * heads * scores.key.shape[2]))
    total = torch.zeros(len(MEASURES), heads, dtype=torch.float64, device=scores.query.device)
    for start in range(queries.start, queries.stop, size):
        chunk = slice(start, min(start + size, queries.stop))
        total += _of_rows(scores, policy, chunk).sum((1, 3), dtype=torch.float64)
    return total.cpu()


def _of_rows(scores: Scores, policy: Policy, queries: slice) -> Tensor:
    """Return `MEASURES` of every row, of shape (measures, batch, heads, queries)."""
    keys = scores.keys_seen(queries)
    z, hidden = scores.logits(queries, keys), _Hidden.of(scores, queries, keys)
    maximum, lowest = _extremes(z, hidden)
    rows = None
    if "entropy_at" in policy.reads:
        rows = LogitRows.of(z.clone(), where=scores.visible(queries, keys))
    z.sub_(maximum[..., None])
    hidden.fill(z, 0.0)
    weights, total, entropy = _softmax(z, 1.0, hidden)
    length = scores.lengths()[..., queries]
    known = RowStatistics(maximum, maximum + total.log(), entropy, length)
    beta = at_least(SMALLEST_BETA, policy(known if rows is None else rows))
    beta = torch.as_tensor(beta, dtype=z.dtype, device=z.device).expand(z.shape[:-1])
    if not bool((beta == 1).all()):
        weights, total, entropy = _softmax(z, beta[..., None], hidden)
    shift = torch.zeros_like(total)
    if policy.shifts_sink and keys.start == 0:
        shift = torch.as_tensor(policy.sink_shift(known), dtype=z.dtype, device=z.device)
        shift = shift.expand(total.shape)
        weights, total, entropy = _shifted(z, beta, shift, hidden)

    first = weights[..., 0] / total if keys.start == 0 else torch.zeros_like(total)
    nearest = max(keys.start, queries.start + scores.offset - NEAR + 1)
    band = replace(scores, window=NEAR, is_causal=True, mask=None)
    close = band.visible(queries, slice(nearest, keys.stop))
    assert close is not None
    near = weights[..., nearest - keys.start :].where(close, 0.0).sum(-1) / total
    spread = maximum - lowest
    _, bound = weight_bounds(spread + shift.abs() / beta, length, beta)
    share = entropy / torch.log(length.clamp(min=2))
    bound = torch.as_tensor(bound).clamp(max=1)
    measures = entropy, share, 1 / total, first, near, beta, spread, bound
    nothing = length == 0  # a row of padding says nothing of a head
    return torch.stack([torch.where(nothing, 0.0, x) for x in measures])


@dataclass(frozen=True)
class _Hidden:
    """Which logits of some rows are not visible: none before the key `since`.

    Below the diagonal of causal attention there is nothing to mask, which is nearly everything.
    """

    since: int
    where: Tensor | None

    @classmethod
    def of(cls, scores: Scores, queries: slice, keys: slice) -> _Hidden:
        diagonal = keys.start
        if scores.is_causal and scores.mask is None and scores.window is None:
            diagonal = min(max(keys.start, queries.start + scores.offset), keys.stop - 1)
        visible = scores.visible(queries, slice(diagonal, keys.stop))
        return cls(diagonal - keys.start, None if visible is None else ~visible)

    def fill(self, values: Tensor, value: float) -> None:
        """Put a value wherever nothing is to be seen."""
        if self.where is not None:
            values[..., self.since :].masked_fill_(self.where, value)


def _extremes(logits: Tensor, hidden: _Hidden) -> tuple[Tensor, Tensor]:
    """Return every row's largest and smallest visible logit; 0 where nothing is visible."""
    hidden.fill(logits, math.inf)
    lowest = logits.amin(-1)
    hidden.fill(logits, -math.inf)
    maximum = logits.amax(-1)
    nothing = maximum == -math.inf
    return maximum.masked_fill_(nothing, 0.0), lowest.masked_fill_(nothing, 0.0)


def _shifted(
    z: Tensor, beta: Tensor, shift: Tensor, hidden: _Hidden
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `_softmax` does of β·z with γ added to the first of every row."""
    tempered = beta[..., None] * z
    tempered[..., 0] += shift
    hidden.fill(tempered, -math.inf)
    tempered.sub_(tempered.amax(-1, keepdim=True))  # a row of padding becomes NaN, and is left out
    hidden.fill(tempered, 0.0)
    return _softmax(tempered, 1.0, hidden)


def _softmax(z: Tensor, beta: Tensor | float, hidden: _Hidden) -> tuple[Tensor, Tensor, Tensor]:
    """Return exp(β·z), its sum l and the entropy ln l − β·Σ z·exp(β·z)/l."""
    exp = torch.exp(z) if isinstance(beta, float) else torch.exp(beta * z)
    hidden.fill(exp, 0.0)
    total = exp.sum(-1).clamp(min=1.0)
    mean = torch.linalg.vecdot(exp, z) / total
    slope = beta if isinstance(beta, float) else beta[..., 0]
    return exp, total, total.log() - slope * mean
