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
        scale: What the dot products are multiplied by.
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
    scale: float
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
        scale: float | None,
        is_causal: bool,
        query_seq_lengths: Any,
        key_value_seq_lengths: Any,
        local_window_size: int | tuple[int, int] | None,
    ) -> Scores:
        """Check that the arguments fit together, or name the one that does not."""
        query, key = jnp.asarray(query), jnp.asarray(key)
        for name, array in (("query", query), ("key", key)):
            if array.ndim != 4:
                raise ValueError(
                    f"{name} must have shape (batch, length, heads, width), got {array.shape}"
                )
            if not jnp.issubdtype(array.dtype, jnp.floating):
                raise TypeError(f"{name} must be an array of floating numbers, got {array.dtype}")
        require_like("key", key, query)
        if key.shape[3] != query.shape[3]:
            raise ValueError(
                f"key must have the width of query, {query.shape[3]}, got {key.shape[3]}"
            )
        if key.shape[2] == 0 or query.shape[2] % key.shape[2]:
            raise ValueError(
                f"query must have a multiple of the {key.shape[2]} heads of key, "
                f"got {query.shape[2]}"
            )
        if key.shape[1] == 0:
            raise ValueError("key must hold at least one key, got none")
        if isinstance(local_window_size, int):
            local_window_size = (local_window_size, local_window_size)
        if local_window_size is not None:
            local_window_size = (local_window_size[0], local_window_size[1])
        if local_window_size is not None and min(local_window_size) < 0:
            raise ValueError(
                f"local_window_size must be numbers of at least 0, got {local_window_size}"
            )
        if scale is not None and not isinstance(scale, int | float):
            raise TypeError(f"scale must be a number, got {type(scale).__name__}")
        batch, queries, heads, width = query.shape
        full = (batch, heads, queries, key.shape[1])
        bias = None if bias is None else _broadcastable("bias", jnp.asarray(bias), full)
        mask = None if mask is None else _broadcastable("mask", jnp.asarray(mask), full)
        if mask is not None and mask.dtype != jnp.bool_:
            raise TypeError(f"mask must be a boolean array, True where visible, got {mask.dtype}")
        return cls(
            query,
            key,
            1 / math.sqrt(width) if scale is None else float(scale),
            bias,
            mask,
            _lengths("query_seq_lengths", query_seq_lengths, batch),
            _lengths("key_value_seq_lengths", key_value_seq_lengths, batch),
            bool(is_causal),
            local_window_size,
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
        logits = logits.reshape(batch, heads, queries, self.key.shape[1]) * self.scale
        return logits if self.bias is None else logits + self.bias.astype(dtype)

    def visible(self) -> Array | None:
        """Return which keys each query sees, broadcastable to the logits; None where all do."""
        seen = [] if self.mask is None else [self.mask]
        position = self.start + jnp.arange(self.query.shape[1])[:, None]
        key = self.first_key + jnp.arange(self.key.shape[1])
        if self.is_causal:
            seen.append((key <= position)[None, None])
        if self.window is not None:
            left, right = self.window
            seen.append(((position <= key + left) & (position >= key - right))[None, None])
        if self.query_lengths is not None:
            seen.append((position < self.query_lengths[:, None, None])[:, None])
        if self.key_lengths is not None:
            seen.append((key < self.key_lengths[:, None])[:, None, None])
        return functools.reduce(jnp.logical_and, seen) if seen else None

    def lengths(self) -> Array:
        """Return how many keys each query sees, broadcastable to the rows, without any mask.

        Only where causality, a window and lengths alone say what is seen.
        """
        assert self.mask is None
        position = self.start + jnp.arange(self.query.shape[1])
        keys = self.first_key + self.key.shape[1]
        end: Array = jnp.full_like(position, keys)[None, None]
        begin: Array = jnp.full_like(position, self.first_key)[None, None]
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


def require_like(name: str, array: Array, query: Array) -> None:
    """Raise an error that names the argument unless it has the query's dtype and batch."""
    if array.dtype != query.dtype:
        raise ValueError(f"{name} must have the dtype of query, {query.dtype}, got {array.dtype}")
    if array.shape[0] != query.shape[0]:
        raise ValueError(
            f"{name} must have the batch size of query, {query.shape[0]}, got {array.shape[0]}"
        )


def _broadcastable(name: str, array: Array, full: tuple[int, ...]) -> Array:
    fits = array.ndim == 4 and all(a in (1, b) for a, b in zip(array.shape, full, strict=True))
    if not fits:
        raise ValueError(f"{name} must have four axes that broadcast to {full}, got {array.shape}")
    return array


def _lengths(name: str, lengths: Any, batch: int) -> Array | None:
    if lengths is None:
        return None
    found: Array = jnp.asarray(lengths)
    if found.shape != (batch,) or not jnp.issubdtype(found.dtype, jnp.integer):
        raise ValueError(
            f"{name} must be whole numbers of shape ({batch},), got {found.dtype} of shape "
            f"{found.shape}"
        )
    return found


def _cut(array: Array | None, axis: int, part: slice) -> Array | None:
    """Return a slice along an axis, unless that is to be broadcast."""
    if array is None or array.shape[axis] == 1:
        return array
    cut: Array = jax.lax.slice_in_dim(array, part.start, part.stop, axis=axis)
    return cut
