"""Attention where the sink stands apart: β acts among all other keys of a row, and not on it.

The sink is key 0, or the first key that the mask shows. What is left of a row is a row of
attention like any other, for every kernel there is. It tells how large the sink's share is as
well: its odds are exp(its own logit − the others' log-sum-exp).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from sharpmax.sink import sink_shares
from sharpmax.statistics import RowStatistics
from sharpmax.torch.choice import sink_log_odds
from sharpmax.torch.operators import is_transformed
from sharpmax.torch.row_statistics.triton import HAS_TRITON, LARGEST_WIDTH, MOST_PLANES
from sharpmax.torch.sink_operators import sink_joined, sink_logit

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.policy import Policy
    from sharpmax.torch.scores import Scores


@dataclass(frozen=True)
class SinkApart:
    """A call of attention, taken apart.

    Attributes:
        others: The logits of all keys but the sinks, of those queries that see any other.
        value: The values of these keys.
        logit: The sink's logit of every query, in float32 or float64.
        own: The sink's value, of shape (batch, key heads, 1 or queries, value width).
        sees: Which queries see their sink; None where all do.
        before: How many queries at the beginning see no other key, and are not in `others`.
    """

    others: Scores
    value: Tensor
    logit: Tensor
    own: Tensor
    sees: Tensor | None
    before: int

    @classmethod
    def of(cls, scores: Scores, value: Tensor) -> SinkApart:
        """Take the sinks out of the keys and their values."""
        places = _places(scores)
        others, before = _other_keys(scores, places)
        left = others.key.shape[2]
        return cls(
            others,
            value[:, :, -left:],
            _logits_at(scores, places),
            _at(value, places),
            _sees(scores, places),
            before,
        )

    def joined(self, out: Tensor, statistics: RowStatistics, policy: Policy) -> Tensor:
        """Return attention to all keys, from that to the others and their statistics."""
        before, sees = self.before, self.sees
        logit = self._seen_logit[..., before:]
        if _has_kernels(out) and (sees is None or not before):
            odds = sink_log_odds(policy, statistics, logit).expand(out.shape[:3])
            by_kernel: Tensor = sink_joined(out, self.own, odds, before)
            return by_kernel
        # In half precision the share of a head that rests would be 1, and nothing left over.
        more = torch.promote_types(out.dtype, torch.float32)
        own = self.own.repeat_interleave(out.shape[1] // self.own.shape[1], dim=1)
        share, rest = (part[..., None] for part in sink_shares(policy, statistics, logit))
        joined: Tensor = (rest * out.to(more) + share * own.to(more)).to(out.dtype)
        if not before:
            return joined
        first = own.expand(*self.logit.shape, -1)[:, :, :before]
        first = first if sees is None else first * sees[..., :before, None]
        return torch.cat((first, joined), dim=2)

    def whole(self, statistics: RowStatistics) -> RowStatistics:
        """Return the statistics of all keys from those of the others."""
        nothing = -torch.inf, -torch.inf, 0.0, 0.0
        others = [
            pad(part, (self.before, 0), value=empty)
            for part, empty in zip(statistics, nothing, strict=True)
        ]
        logit = self._seen_logit
        none = torch.zeros_like(logit)
        sink = RowStatistics(logit, logit, none, torch.where(logit > -torch.inf, 1.0, none))
        return RowStatistics(*others).merge(sink)

    @property
    def _seen_logit(self) -> Tensor:
        """The sink's logit, −inf where it is not seen."""
        return self.logit if self.sees is None else torch.where(self.sees, self.logit, -torch.inf)


def _has_kernels(rows: Tensor) -> bool:
    """Tell whether there are kernels for the sinks of such rows, of queries or of outputs."""
    if not HAS_TRITON or rows.device.type != "cuda" or rows.dtype == torch.float64:
        return False
    fits = rows.shape[-1] <= LARGEST_WIDTH and rows.shape[0] * rows.shape[1] <= MOST_PLANES
    return fits and rows.numel() > 0 and not is_transformed()


def other_keys(scores: Scores) -> Scores:
    """Return the logits of all keys but the sinks, of the queries that see any."""
    return _other_keys(scores, _places(scores))[0]


def _other_keys(scores: Scores, places: Tensor | None) -> tuple[Scores, int]:
    """Return the logits of all keys but the sinks, and how many queries are left out for them.

    Where key 0 is the sink of all, the others are a part of the keys, and plain causal attention
    stays that. Elsewhere a mask hides the sinks.
    """
    query, key, mask = scores.query, scores.key, scores.mask
    if places is None and key.shape[2] > 1:
        before = max(0, 1 - scores.offset) if scores.is_causal and query.shape[2] > 1 else 0
        return replace(scores, query=query[:, :, before:], key=key[:, :, 1:]), before
    keys = torch.arange(key.shape[2], device=key.device)
    hidden = keys != (0 if places is None else places[..., None])
    return replace(scores, mask=hidden if mask is None else hidden & mask), 0


def _places(scores: Scores) -> Tensor | None:
    """Return where the sink of every row is, of shape (batch, 1, 1 or queries); None for key 0."""
    mask = scores.whole_mask
    if mask is None:
        return None
    if mask.shape[1] > 1:
        raise NotImplementedError(
            "attention cannot set the sink apart under a mask that differs by head"
        )
    return mask.to(torch.uint8).argmax(-1)


def _at(keys: Tensor, places: Tensor | None) -> Tensor:
    """Return what is at the places, of shape (batch, key heads, 1 or queries, width)."""
    if places is None:
        return keys[:, :, :1]
    batch, heads, _, width = keys.shape
    # The gradients of many queries add up in one place: more than half precision can hold.
    more = torch.promote_types(keys.dtype, torch.float32)
    return keys.to(more).gather(2, places[..., None].expand(batch, heads, -1, width))


def _logits_at(scores: Scores, places: Tensor | None) -> Tensor:
    """Return the logit of every query's sink."""
    key, (batch, heads, queries) = _at(scores.key, places), scores.shape
    if _has_kernels(scores.query) and scores.softcap is None:
        by_kernel: Tensor = sink_logit(scores.query, key, scores.scale)
        return by_kernel
    sinks = replace(scores, key=key)
    if key.shape[2] == 1:
        return sinks.logits(slice(0, queries), slice(0, 1))[..., 0]
    # As many sequences of one query: each has a sink of its own.
    apart = replace(
        sinks,
        query=scores.query.movedim(2, 1).reshape(batch * queries, heads, 1, -1),
        key=key.movedim(2, 1).reshape(batch * queries, key.shape[1], 1, -1),
    )
    return apart.logits(slice(0, 1), slice(0, 1)).view(batch, queries, heads).movedim(1, 2)


def _sees(scores: Scores, places: Tensor | None) -> Tensor | None:
    """Return which queries see their sink, of shape (batch, 1, queries); None where all do."""
    mask = scores.whole_mask
    queries = torch.arange(scores.shape[2], device=scores.query.device)
    back = queries + scores.offset - (0 if places is None else places)
    sees = None if mask is None else mask.any(-1)
    if scores.is_causal and (mask is not None or scores.offset < 0):
        sees = back >= 0 if sees is None else sees & (back >= 0)
    if scores.window is not None:
        within = back.abs() < scores.window
        sees = within if sees is None else sees & within
    return sees
