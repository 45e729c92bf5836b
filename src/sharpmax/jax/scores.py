"""How the logits of attention are made: from query and key, bias, scale and visibility.

The names and the layout are those of `jax.nn.dot_product_attention`: (batch, length, heads, width),
query i stands at key i, and windows reach to the left and to the right.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from sharpmax.jax.arguments import (
    bias_of,
    causality_of,
    lengths_of,
    mask_of,
    require_fitting,
    scale_of,
    sequences_of,
    window_of,
)
from sharpmax.rows import LogitRows


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "query",
        "key",
        "bias",
        "mask",
        "query_lengths",
        "key_lengths",
        "start",
        "first_key",
    ],
    meta_fields=["scale", "is_causal", "window"],
)
@dataclass(frozen=True)
class Scores:
    """The logits scale·q·kᵀ + bias of every query, and which keys each of them sees.

    Attributes:
        query: Of shape (batch, queries, heads, width).
        key: Of shape (batch, keys, key heads, width).
        scale: What the dot products are multiplied by: a Python number, or an array that is traced.
        bias: What is added to the logits, broadcastable to (batch, heads, queries, keys), or None.
        mask: True where a query sees a key, likewise.
        query_lengths: How many queries of each sequence there are: (batch,), or None.
        key_lengths: How many keys, likewise.
        is_causal: Whether query i sees no key after key i.
        window: How many keys to the left and to the right a query sees besides its own, or None.
        start: The place of the first query in its sequence.
        first_key: The place of the first key in its sequence.
    """

    query: Array
    key: Array
    scale: Any
    bias: Array | None = None
    mask: Array | None = None
    query_lengths: Array | None = None
    key_lengths: Array | None = None
    is_causal: bool = False
    window: tuple[int, int] | None = None
    start: int | Array = 0
    first_key: int | Array = 0

    @classmethod
    def of(
        cls,
        query: Any,
        key: Any,
        bias: Any = None,
        mask: Any = None,
        *,
        scale: Any,
        is_causal: bool,
        query_seq_lengths: Any,
        key_value_seq_lengths: Any,
        local_window_size: int | tuple[int, int] | None,
    ) -> Scores:
        """Check that the arguments fit together, or name the one that does not."""
        query, key = sequences_of("query", query), sequences_of("key", key)
        require_fitting(query, key)
        batch, queries, heads, width = query.shape
        full = (batch, heads, queries, key.shape[1])
        return cls(
            query,
            key,
            scale_of(scale, width),
            bias_of(bias, full),
            mask_of(mask, full),
            lengths_of("query_seq_lengths", query_seq_lengths, batch),
            lengths_of("key_value_seq_lengths", key_value_seq_lengths, batch),
            causality_of(is_causal),
            window_of(local_window_size),
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of an array with one entry a row: (batch, heads, queries)."""
        batch, queries, heads, _ = self.query.shape
        return batch, heads, queries

    def logits(self) -> Array:
        """Return all logits, (batch, heads, queries, keys), in float32 or float64."""
        batch, queries, heads, width = self.query.shape
        key_heads = self.key.shape[2]
        dtype = jnp.promote_types(self.query.dtype, jnp.float32)
        # Heads that share their keys stand beside each other: no key is copied.
        query = self.query.reshape(batch, queries, key_heads, heads // key_heads, width)
        logits = jnp.einsum("btkgh,bskh->bkgts", query, self.key, preferred_element_type=dtype)
        logits = logits.reshape(batch, heads, queries, self.key.shape[1])
        logits = logits * jnp.asarray(self.scale, dtype)
        return logits if self.bias is None else logits + _as_dtype(self.bias, dtype)

    def visible(self) -> Array | None:
        """Return which keys each query sees, broadcastable to the logits; None where all do."""
        seen = [] if self.mask is None else [self.mask]
        position = self.start + jnp.arange(self.query.shape[1])[:, None]
        key = self.first_key + jnp.arange(self.key.shape[1])[None]
        if self.is_causal:
            seen.append((key <= position)[None, None])
        if self.window is not None:
            left, right = self.window
            seen.append(((position <= key + left) & (position >= key - right))[None, None])
        if self.query_lengths is not None:
            seen.append((position[None] < self.query_lengths[:, None, None])[:, None])
        if self.key_lengths is not None:
            seen.append((key < self.key_lengths[:, None])[:, None, None])
        return functools.reduce(jnp.logical_and, seen) if seen else None

    def lengths(self) -> Array:
        """Return how many keys each query sees, broadcastable to the rows, without any mask.

        Only where causality, a window and lengths alone say what is seen.
        """
        assert self.mask is None
        position = self.start + jnp.arange(self.query.shape[1])[None, None]
        end: Array = jnp.full_like(position, self.first_key + self.key.shape[1])
        begin: Array = jnp.full_like(position, self.first_key)
        if self.key_lengths is not None:
            end = jnp.minimum(end, self.key_lengths[:, None, None])
        if self.is_causal:
            end = jnp.minimum(end, position + 1)
        if self.window is not None:
            left, right = self.window
            begin = jnp.maximum(begin, position - left)
            end = jnp.minimum(end, position + right + 1)
        count = jnp.maximum(end - begin, 0)
        if self.query_lengths is not None:
            count = jnp.where(position < self.query_lengths[:, None, None], count, 0)
        return count

    def rows(self) -> LogitRows:
        """Return the rows, all of them at hand."""
        visible, logits = self.visible(), self.logits()
        where = None if visible is None else jnp.broadcast_to(visible, logits.shape)
        return LogitRows.of(logits, where=where)

    def over_keys(self, keys: slice) -> Scores:
        """Return the scores of all queries over some keys."""
        return replace(
            self,
            key=self.key[:, keys],
            bias=_cut(self.bias, 3, keys),
            mask=_cut(self.mask, 3, keys),
            first_key=self.first_key + keys.start,
        )

    def of_queries(self, first: int | Array, count: int) -> Scores:
        """Return the scores of so many queries, from one that need not be known in advance."""

        def some(array: Array | None, axis: int) -> Array | None:
            if array is None or (array.shape[axis] == 1 and array is not self.query):
                return array
            cut: Array = jax.lax.dynamic_slice_in_dim(array, first, count, axis)
            return cut

        query = some(self.query, 1)
        assert query is not None
        return replace(
            self,
            query=query,
            bias=some(self.bias, 2),
            mask=some(self.mask, 2),
            start=self.start + first,
        )

    def padded(self, queries: int) -> Scores:
        """Return the scores with queries of zeros added, up to so many."""
        missing = queries - self.query.shape[1]

        def longer(array: Array | None, axis: int) -> Array | None:
            if array is None or (array.shape[axis] == 1 and array is not self.query):
                return array
            widths = [(0, missing if place == axis else 0) for place in range(array.ndim)]
            return jnp.pad(array, widths)

        query = longer(self.query, 1)
        assert query is not None
        return replace(self, query=query, bias=longer(self.bias, 2), mask=longer(self.mask, 2))


def weighted(weights: Array, value: Array) -> Array:
    """Return weights·value of (batch, heads, queries, keys) and (batch, keys, key heads, width)."""
    batch, heads, queries, keys = weights.shape
    key_heads = value.shape[2]
    grouped = weights.reshape(batch, key_heads, heads // key_heads, queries, keys)
    out = jnp.einsum("bkgts,bskh->btkgh", grouped, value, preferred_element_type=weights.dtype)
    return out.reshape(batch, queries, heads, value.shape[3]).astype(value.dtype)


def _as_dtype(bias: Array, dtype: Any) -> Array:
    """Return a bias in the dtype of the logits, −inf where it hides a key.

    A half precision's most negative number would be an ordinary one in float32.
    """
    if not jnp.issubdtype(bias.dtype, jnp.floating):
        return bias.astype(dtype)
    lowest = jnp.finfo(bias.dtype).min  # type: ignore[no-untyped-call]
    return jnp.where(bias <= lowest, -math.inf, bias.astype(dtype))


def _cut(array: Array | None, axis: int, part: slice) -> Array | None:
    """Return a slice along an axis, unless that is to be broadcast."""
    if array is None or array.shape[axis] == 1:
        return array
    cut: Array = jax.lax.slice_in_dim(array, part.start, part.stop, axis=axis)
    return cut
