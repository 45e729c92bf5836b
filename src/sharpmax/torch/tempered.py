"""Attention at a given β per row: the second half of the corridor.

Where the logits are plain scaled dot products, β·(q·k) = (β·q)·k, and the fastest attention
kernel at hand does the work. Where something comes between the dot product and β (a softcap),
or that kernel cannot see what the queries see, the logits are made a few queries at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sharpmax.arrays import at_least
from sharpmax.rows import SMALLEST_BETA, LogitRows
from sharpmax.torch.checkpoint import checkpointed

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from sharpmax.torch.scores import Scores

FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def attend(scores: Scores, value: Tensor, beta: Tensor | float) -> Tensor:
    """Return softmax(β·logits)·value, with β a number or an array that broadcasts to the rows."""
    beta = at_least(SMALLEST_BETA, beta)
    if not isinstance(beta, int | float):
        beta = beta.expand(scores.shape)
    plain = scores.softcap is None and scores.scale > 0
    if plain and (scores.sees_all or scores.is_square_causal):
        return _by_sdpa(scores, value, beta)

    def chosen(rows: LogitRows, queries: slice) -> Tensor | float:
        del rows
        return beta if isinstance(beta, int | float) else beta[..., queries]

    return attend_by_chunks(scores, value, chosen)


def _by_sdpa(scores: Scores, value: Tensor, beta: Tensor | float) -> Tensor:
    """Attend by the fastest kernel at hand, β multiplied into the queries."""
    query = scores.query
    if not isinstance(beta, int | float):
        query = query * beta[..., None].to(query.dtype)
    elif beta != 1:
        query = query * beta
    with sdpa_kernel(FASTEST_FIRST, set_priority=True):
        out: Tensor = scaled_dot_product_attention(
            query,
            scores.key,
            value,
            is_causal=scores.is_square_causal,
            scale=scores.scale,
            enable_gqa=scores.query.shape[1] != scores.key.shape[1],
        )
    return out


def attend_by_chunks(
    scores: Scores,
    value: Tensor,
    choose: Callable[[LogitRows, slice], Tensor | float],
) -> Tensor:
    """Attend a few queries at a time, with a β that may be chosen from the rows themselves."""
    batch, heads, _, _ = scores.query.shape
    key_heads = scores.key.shape[1]

    def of(queries: slice) -> Tensor:
        keys = scores.keys_seen(queries)
        logits = scores.logits(queries, keys)
        rows = LogitRows.of(logits, where=scores.visible(queries, keys))
        weights: Tensor = rows.softmax(choose(rows, queries))
        size, rows_a_key_head = weights.shape[2], heads // key_heads * weights.shape[2]
        stacked = weights.reshape(batch, key_heads, rows_a_key_head, weights.shape[-1])
        out = stacked @ value[:, :, keys].to(weights.dtype)
        return out.view(batch, heads, size, value.shape[-1]).to(dtype=value.dtype)

    return torch.cat([checkpointed(of, queries) for queries in scores.chunks()], dim=2)
