"""Attention at a given β from the logits of a few queries at a time: any logits, any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharpmax.rows import LogitRows
from sharpmax.torch.chunks import by_chunks

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from sharpmax.torch.scores import Scores


def refusal(scores: Scores, value: Tensor, beta: Tensor | float, maximum: Tensor | None) -> None:
    """Take every call."""
    del scores, value, beta, maximum


def attend(scores: Scores, value: Tensor, beta: Tensor | float, maximum: Tensor | None) -> Tensor:
    """Attend chunk by chunk."""
    del maximum

    def chosen(rows: LogitRows, queries: slice) -> Tensor | float:
        del rows
        return beta if isinstance(beta, int | float) else beta[..., queries]

    return attend_choosing(scores, value, chosen)


def attend_choosing(
    scores: Scores,
    value: Tensor,
    choose: Callable[[LogitRows, slice], Tensor | float],
) -> Tensor:
    """Attend a few queries at a time, with a β that may be chosen from the rows themselves.

    Args:
        scores: How the logits are made.
        value: Of shape (batch, key heads, keys, value width).
        choose: Returns β of the rows of some queries.
    """
    batch, heads, _, _ = scores.query.shape
    key_heads = scores.key.shape[1]

    def of(queries: slice) -> tuple[Tensor]:
        keys = scores.keys_seen(queries)
        logits = scores.logits(queries, keys)
        rows = LogitRows.of(logits, where=scores.visible(queries, keys))
        weights: Tensor = rows.softmax(choose(rows, queries))
        size, rows_a_key_head = weights.shape[2], heads // key_heads * weights.shape[2]
        stacked = weights.reshape(batch, key_heads, rows_a_key_head, weights.shape[-1])
        out = stacked @ value[:, :, keys].to(weights.dtype)
        return (out.view(batch, heads, size, value.shape[-1]).to(dtype=value.dtype),)

    (out,) = by_chunks(of, scores.chunks(), scores.shape[2])
    return out
