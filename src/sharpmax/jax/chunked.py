"""Attention a few queries at a time, in memory linear in the length, on any backend.

A chunk holds whole rows, so that a policy can read anything of them, and the products with the keys
are made once. What a chunk computes is computed again for the gradient and not kept. Causal queries
are taken in a few segments, each over no more keys than its last query sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

from sharpmax.jax.scores import weighted
from sharpmax.statistics import RowStatistics

if TYPE_CHECKING:
    from sharpmax.jax.scores import Scores
    from sharpmax.policy import Policy

CHUNK_ELEMENTS = 2**22
"""Logits made at a time, over all batches and heads."""
SEGMENTS = 8
"""Parts of the queries, each with its own range of keys: every one is compiled by itself."""


def attend(scores: Scores, value: Array, policy: Policy) -> tuple[Array, RowStatistics]:
    """Return softmax(β·logits)·value, (batch, queries, heads, width), and the statistics."""

    def of(part: Scores, values: Array) -> tuple[Array, RowStatistics]:
        rows = part.rows()
        weights = rows.softmax(policy(rows))
        return weighted(weights, values), RowStatistics(*rows.summary(), rows.length)

    out, statistics = by_chunks(scores, value, of)
    return out, statistics


def row_statistics(scores: Scores) -> RowStatistics:
    """Return the statistics of every row, of shape (batch, heads, queries)."""

    def of(part: Scores, _: Array) -> RowStatistics:
        rows = part.rows()
        return RowStatistics(*rows.summary(), rows.length)

    found: RowStatistics = by_chunks(scores, scores.key, of)
    return found


def by_chunks(
    scores: Scores, value: Array, of: Callable[..., Any], by_row: tuple[Array, ...] = ()
) -> Any:
    """Apply a function to the scores of a few queries at a time, and join what it returns.

    Args:
        scores: Of all queries.
        value: Of all keys.
        of: Takes scores, values and its share of `by_row`. Of what it returns, arrays of four axes
            are joined along the second, and others, with one entry a row, along the last.
        by_row: Arrays of one entry a row, (batch, heads, queries).
    """
    batch, heads, queries = scores.shape
    keys = scores.key.shape[1]
    size = max(1, min(queries, CHUNK_ELEMENTS // max(1, batch * heads * keys)))
    chunks = -(-queries // size)
    if chunks <= 1:
        return of(scores, value, *by_row)
    padded, missing = scores.padded(chunks * size), chunks * size - queries
    by_row = tuple(jnp.pad(array, ((0, 0), (0, 0), (0, missing))) for array in by_row)
    parts = []
    segments = min(SEGMENTS, chunks) if scores.is_causal and _begin_at_zero(scores) else 1
    for segment in range(segments):
        first, last = chunks * segment // segments, chunks * (segment + 1) // segments
        seen = slice(0, min(keys, last * size) if segments > 1 else keys)
        over, values = padded.over_keys(seen), value[:, seen]

        @jax.checkpoint
        def chunk(number: Array, over: Scores = over, values: Array = values) -> Any:
            start = number * size
            rows = [jax.lax.dynamic_slice_in_dim(x, start, size, axis=-1) for x in by_row]
            return of(over.of_queries(start, size), values, *rows)

        parts.append(jax.lax.map(chunk, jnp.arange(first, last)))
    joined = jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts)
    return jax.tree.map(lambda array: _joined(array, queries), joined)


def _begin_at_zero(scores: Scores) -> bool:
    """Tell whether queries and keys begin at the same place, as far as that is known."""
    places = scores.start, scores.first_key
    return all(isinstance(place, int) and place == 0 for place in places)


def _joined(chunks: Array, queries: int) -> Array:
    """Return chunks of queries, along a first axis, as one array without those of the padding."""
    axis = 1 if chunks.ndim == 5 else chunks.ndim - 2
    whole = jnp.moveaxis(chunks, 0, axis)
    shape = (*whole.shape[:axis], -1, *whole.shape[axis + 2 :])
    return jax.lax.slice_in_dim(whole.reshape(shape), 0, queries, axis=axis)
