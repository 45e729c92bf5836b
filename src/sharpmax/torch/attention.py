"""Attention with a temperature for every row: query and key → statistics → policy → β → output."""

from __future__ import annotations

import math

from torch import Tensor

from sharpmax.policies import PAPER, BetaAlone
from sharpmax.policy import Policy, require_policy
from sharpmax.statistics import RowStatistics
from sharpmax.torch import attention_rows, decode
from sharpmax.torch.attention_rows import AttentionRows
from sharpmax.torch.autocast import as_under_autocast
from sharpmax.torch.choice import choose, in_training
from sharpmax.torch.row_statistics import IMPLEMENTATIONS, chosen, require_implementation
from sharpmax.torch.scores import Scores, require_alike
from sharpmax.torch.sink import SinkApart
from sharpmax.torch.tempered import attend, sdpa
from sharpmax.torch.tempered.chunked import attend_choosing


@as_under_autocast
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    policy: Policy = PAPER,
    is_causal: bool = False,
    mask: Tensor | None = None,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    implementation: str | None = None,
    return_statistics: bool = False,
    lost: float | None = None,
) -> Tensor | tuple[Tensor, RowStatistics]:
    """Return softmax(β·logits)·value, with β chosen for every row by `policy`.

    Takes query, key and value as `torch.nn.functional.scaled_dot_product_attention` does, in
    memory linear in the length, and is differentiable also through the policy. With as many
    keys as queries, `Fixed(1.0)` gives the same result; with more, a causal query here sees the
    keys up to its own place counted from the end, where PyTorch counts from the start. Under
    `torch.autocast` it computes in that dtype, as PyTorch's does.

    Args:
        query: Of shape (batch, heads, queries, width).
        key: Of shape (batch, key heads, keys, width); the heads may be a multiple of the key
            heads (grouped-query attention).
        value: Of shape (batch, key heads, keys, value width).
        policy: Chooses β from a row's statistics. One that reads no more than the length costs
            no statistics pass, unless it sets the sink apart. That is key 0, or the first key
            that the mask shows, where a query sees it.
        is_causal: Whether a query sees no key after it. The last query stands at the last key,
            also where there are more keys than queries.
        mask: A boolean tensor that broadcasts to (batch, heads, queries, keys), True where a
            query sees a key. A query that sees none gives zeros, with gradient 0.
        window: How many keys back a query sees, itself counted (ahead too if not causal).
        softcap: Bounds the logits to ±softcap by softcap·tanh(s / softcap).
        scale: What the dot products are multiplied by; 1/√width if None.
        implementation: Of the row statistics; see `sharpmax.torch.row_statistics`.
        return_statistics: Whether to return the plain logits' `RowStatistics` as well.
        lost: The most of a row's weight that may be left out where a few queries decode over a
            long cache on a GPU, so that values without weight need not be read; the output
            moves by at most 2·lost·max|value|. By default it is 1/256 of the rounding of the
            dtype; 0 leaves nothing out.
    """
    require_policy(policy)
    scores = Scores.of(
        query,
        key,
        is_causal=is_causal,
        mask=mask,
        window=window,
        softcap=softcap,
        scale=scale,
    )
    _require_value(value, scores)
    require_implementation(implementation)
    if lost is not None and (not isinstance(lost, int | float) or not 0 <= lost < 1):
        raise ValueError(f"lost must be at least 0 and below 1, got {lost}")
    out, statistics = _sharpened(scores, value, policy, implementation, return_statistics, lost)
    return (out, statistics) if return_statistics else out


def _sharpened(
    scores: Scores,
    value: Tensor,
    policy: Policy,
    implementation: str | None,
    return_statistics: bool,
    lost: float | None,
) -> tuple[Tensor, RowStatistics]:
    """Go down the corridor; statistics that nobody reads are NaN."""
    if policy.sets_sink_apart:
        apart = SinkApart.of(scores, value)
        rest = apart.others, apart.value, BetaAlone(policy)
        out, statistics = _sharpened(*rest, implementation, return_statistics=True, lost=lost)
        out = apart.joined(out, statistics, policy)
        return out, apart.whole(statistics) if return_statistics else statistics
    chooses_from_rows = "entropy_at" in policy.reads
    if chooses_from_rows and implementation is not None and not return_statistics:
        raise NotImplementedError(
            f"the {implementation} row statistics cannot tell the entropy at every β, which "
            "the policy chooses from: leave implementation out"
        )
    on_gpu = scores.query.device.type == "cuda"
    reads_rows = return_statistics or not policy.reads <= {"length", "detached"}
    decodes = on_gpu and implementation is None and not chooses_from_rows
    if not reads_rows and scores.key.shape[2] < decode.LONG_CACHE:
        decodes &= sdpa.refusal(scores, value, 1.0, None) is not None
    if decodes and not in_training(policy) and decode.refusal(scores, value) is None:
        return decode.decode(scores, value, policy, lost, return_statistics)
    wanted = return_statistics or (reads_rows and not chooses_from_rows)
    statistics, maximum = _statistics(scores, policy, implementation, wanted)
    if not chooses_from_rows:
        return attend(scores, value, choose(policy, statistics), maximum), statistics
    if on_gpu and attention_rows.refusal(scores) is None:
        beta = choose(policy, AttentionRows(scores))
        return attend(scores, value, beta, maximum), statistics
    return attend_choosing(scores, value, lambda rows, _: policy(rows)), statistics


def _statistics(
    scores: Scores, policy: Policy, implementation: str | None, wanted: bool
) -> tuple[RowStatistics, Tensor | None]:
    """Return the rows' statistics, or their length alone, and their maximum where it is known."""
    if not wanted:
        length = scores.lengths() if "length" in policy.reads else math.nan
        return RowStatistics(math.nan, math.nan, math.nan, length), None
    name = chosen(scores, implementation, policy.reads)
    statistics = IMPLEMENTATIONS[name].row_statistics(scores)
    return statistics, None if name == "flash" else statistics.max


def _require_value(value: Tensor, scores: Scores) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"value must be a torch.Tensor, got {type(value).__name__}")
    if value.ndim != 4 or value.shape[1:3] != scores.key.shape[1:3]:
        raise ValueError(
            f"value must have shape (batch, {scores.key.shape[1]}, {scores.key.shape[2]}, width) "
            f"like key, got {tuple(value.shape)}"
        )
    require_alike("value", value, scores.query)
