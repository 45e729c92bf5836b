"""What a head does with the rows of its attention, measured without holding the matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sharpmax.arrays import at_least
from sharpmax.rows import SMALLEST_BETA, LogitRows
from sharpmax.softmax import weights_apart
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
spread: δ, the largest logit less the smallest, before β; of the others where the sink stands apart.
bound: exp(βδ)/n, which no weight can exceed (Lemma 2.1), at most 1. Where the sink stands apart,
    its share or, if that is more, this bound on the others.
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
    of_row = _Row(scores, queries, keys, scores.lengths()[..., queries], maximum - lowest)
    if policy.sets_sink_apart and keys.start == 0:
        whole = LogitRows.of(z, where=scores.visible(queries, keys))
        return _measures_apart(whole, z, policy, of_row)
    rows = None
    if "entropy_at" in policy.reads:
        rows = LogitRows.of(z.clone(), where=scores.visible(queries, keys))
    z.sub_(maximum[..., None])
    hidden.fill(z, 0.0)
    weights, total, entropy = _softmax(z, 1.0, hidden)
    known = RowStatistics(maximum, maximum + total.log(), entropy, of_row.length)
    beta = of_row.each(at_least(SMALLEST_BETA, policy(known if rows is None else rows)))
    if not bool((beta == 1).all()):
        weights, total, entropy = _softmax(z, beta[..., None], hidden)
    _, bound = weight_bounds(of_row.spread, of_row.length, beta)
    return of_row.measures(weights, total, entropy, beta, torch.as_tensor(bound))


def _measures_apart(rows: LogitRows, z: Tensor, policy: Policy, of_row: _Row) -> Tensor:
    """Return the measures of rows whose sink stands apart; β and spread are of the others."""
    weights, chosen, sink, others = weights_apart(rows, policy)
    assert others.where is not None
    seen = others.where.view(z.shape)
    lowest = torch.where(seen, z, math.inf).amin(-1)
    spread = torch.where(seen.any(-1), others.max - lowest, 0.0)
    of_row = replace(of_row, spread=spread)
    beta = of_row.each(at_least(SMALLEST_BETA, chosen))
    _, bound = weight_bounds(spread, others.length.clamp(min=1), beta)
    bound = torch.maximum(sink, (1 - sink) * torch.as_tensor(bound).clamp(max=1))
    entropy = torch.special.entr(weights).sum(-1)
    total = 1 / weights.amax(-1).clamp(min=torch.finfo(weights.dtype).tiny)
    return of_row.measures(weights * total[..., None], total, entropy, beta, bound)


@dataclass(frozen=True)
class _Row:
    """What is known of some rows before any temperature."""

    scores: Scores
    queries: slice
    keys: slice
    length: Tensor
    spread: Tensor

    def each(self, value: Tensor | float) -> Tensor:
        """Return a number for every row."""
        like = self.spread
        return torch.as_tensor(value, dtype=like.dtype, device=like.device).expand(like.shape)

    def measures(
        self, weights: Tensor, total: Tensor, entropy: Tensor, beta: Tensor, bound: Tensor
    ) -> Tensor:
        """Return `MEASURES`, from weights of which the largest is 1, and their sum."""
        keys, queries, scores = self.keys, self.queries, self.scores
        first = weights[..., 0] / total if keys.start == 0 else torch.zeros_like(total)
        nearest = max(keys.start, queries.start + scores.offset - NEAR + 1)
        band = replace(scores, window=NEAR, is_causal=True, mask=None)
        close = band.visible(queries, slice(nearest, keys.stop))
        assert close is not None
        near = weights[..., nearest - keys.start :].where(close, 0.0).sum(-1) / total
        share = entropy / torch.log(self.length.clamp(min=2))
        bound = bound.clamp(max=1)
        measures = entropy, share, 1 / total, first, near, beta, self.spread, bound
        nothing = self.length == 0  # a row of padding says nothing of a head
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


def _softmax(z: Tensor, beta: Tensor | float, hidden: _Hidden) -> tuple[Tensor, Tensor, Tensor]:
    """Return exp(β·z), its sum l and the entropy ln l − β·Σ z·exp(β·z)/l."""
    exp = torch.exp(z) if isinstance(beta, float) else torch.exp(beta * z)
    hidden.fill(exp, 0.0)
    total = exp.sum(-1).clamp(min=1.0)
    mean = torch.linalg.vecdot(exp, z) / total
    slope = beta if isinstance(beta, float) else beta[..., 0]
    return exp, total, total.log() - slope * mean
