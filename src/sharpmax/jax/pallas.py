"""Row statistics by a kernel of our own, in one pass over the keys, and cuDNN for the second half.

A block of queries walks over the keys a tile at a time and keeps three numbers a row: the largest
logit m so far, l = Σ exp(s − m) and t = Σ exp(s − m)·(s − m). From these the entropy is
ln l − t/l, without a difference of large numbers. Tiles that all queries of the block see in full
are taken without a mask. The last queries see the most keys, so they go first.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from sharpmax.jax import flash, mosaic
from sharpmax.jax.flash import Summary
from sharpmax.jax.mosaic import LN2, NOTHING, SMALLEST

if TYPE_CHECKING:
    from sharpmax.jax.scores import Scores
    from sharpmax.policy import Policy
    from sharpmax.statistics import RowStatistics

QUERIES, KEYS = 128, 64
"""In a tile."""
WARPS, STAGES = 8, 3
INTERPRETED = False
"""Whether the kernel runs without a GPU, slowly, to be tested."""


def refusal(scores: Scores, value: Array | None = None, policy: Policy | None = None) -> str | None:
    """Return why the kernel and cuDNN cannot take a call, or None if they can."""
    kind = jax.typeof(scores.query)
    by_axis = getattr(kind, "manual_axis_type", kind)  # its name in newer versions
    if getattr(by_axis, "varying", None) or getattr(by_axis, "vma", None):
        return "takes no shard_map that checks which axes vary: use check_vma=False"
    return flash.refusal(scores, value, policy)


def attend(scores: Scores, value: Array, policy: Policy) -> tuple[Array, RowStatistics]:
    """Return softmax(β·logits)·value and the statistics."""
    return flash.attend(scores, value, policy, row_statistics)


def row_statistics(scores: Scores) -> RowStatistics:
    """Return the statistics of every row.

    Where they are differentiated, cuDNN makes them, and what the gradient needs with them; the
    largest logits are then unknown, NaN.
    """
    return flash.statistics(scores, summary)


def summary(scores: Scores) -> Summary:
    """Return the summary of every row by the kernel, or by the one for Hopper where it can."""
    if mosaic.refusal(scores) is None:
        return mosaic.summary(scores)
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    batch, queries, heads, width = scores.query.shape
    keys, key_heads = scores.key.shape[1:3]
    wide = 1 << max(4, (width - 1).bit_length())
    query = scores.query if scores.scale >= 0 else -scores.query
    query = _padded(query, _up(queries, QUERIES), wide)
    blocks = query.shape[1] // QUERIES
    key = _padded(scores.key, _up(keys, KEYS), wide)
    lengths = scores.key_lengths
    lengths = jnp.full((batch,), keys) if lengths is None else lengths
    lengths = jnp.clip(lengths, 0, keys)
    group = heads // key_heads
    a_row = pl.BlockSpec(
        (None, None, QUERIES), lambda block, head, b: (b, head, blocks - 1 - block)
    )
    shape = jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
        (batch, heads, query.shape[1]), jnp.float32
    )
    found = pl.pallas_call(
        partial(
            _kernel,
            scale=abs(scores.scale) / LN2,
            is_causal=scores.is_causal,
            window=scores.window,
        ),
        grid=(blocks, heads, batch),
        in_specs=[
            pl.BlockSpec(
                (None, QUERIES, None, wide), lambda block, head, b: (b, blocks - 1 - block, head, 0)
            ),
            pl.BlockSpec(
                (None, key.shape[1], None, wide), lambda _, head, b: (b, 0, head // group, 0)
            ),
            pl.BlockSpec((1,), lambda _, __, b: (b,)),
        ],
        out_specs=[a_row] * 3,
        out_shape=[shape] * 3,
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=STAGES),
        interpret=INTERPRETED,
        name="row_statistics",
    )(query, key, lengths.astype(jnp.int32))
    return Summary(*(array[:, :, :queries] for array in found))


def _kernel(
    query_ref: Any,
    key_ref: Any,
    length_ref: Any,
    max_ref: Any,
    lse_ref: Any,
    entropy_ref: Any,
    *,
    scale: float,
    is_causal: bool,
    window: tuple[int, int] | None,
) -> None:
    from jax.experimental import pallas as pl

    first = (pl.num_programs(0) - 1 - pl.program_id(0)) * QUERIES
    last = first + QUERIES - 1
    query = query_ref[...]
    length = length_ref[0]
    # What some query of the block sees ends at `end`, and what all of them see at `common_end`.
    end = common_end = length
    begin = common_begin = jnp.zeros_like(length)
    if is_causal:
        end, common_end = jnp.minimum(end, last + 1), jnp.minimum(common_end, first + 1)
    if window is not None:
        left, right = window
        end = jnp.minimum(end, last + right + 1)
        common_end = jnp.minimum(common_end, first + right + 1)
        begin, common_begin = jnp.maximum(0, first - left), jnp.maximum(0, last - left)
    tiles = (end + KEYS - 1) // KEYS
    first_tile = jnp.minimum(begin // KEYS, tiles)
    whole_from = jnp.clip((common_begin + KEYS - 1) // KEYS, first_tile, tiles)
    whole_to = jnp.clip(common_end // KEYS, whole_from, tiles)

    def step(tile: Array, carried: tuple[Array, Array, Array], masked: bool) -> Any:
        top, total, tilted = carried
        key = key_ref[pl.ds(tile * KEYS, KEYS), :]
        products = jnp.dot(query, key.T, preferred_element_type=jnp.float32)
        logits = scale * products
        if masked:
            place = tile * KEYS + lax.broadcasted_iota(jnp.int32, logits.shape, 1)
            position = first + lax.broadcasted_iota(jnp.int32, logits.shape, 0)
            seen = place < length
            if is_causal:
                seen &= place <= position
            if window is not None:
                seen &= (position <= place + window[0]) & (position >= place - window[1])
            logits = jnp.where(seen, logits, NOTHING)
        # Without a mask the logits fuse with what is taken from them, if the maximum needs none.
        highest = logits.max(axis=1) if masked else scale * products.max(axis=1)
        higher = jnp.maximum(top, highest)
        fall = top - higher
        shrunk = jnp.exp2(fall)
        below = logits - higher[:, None]
        weights = jnp.exp2(below)
        tilted = (tilted + total * fall) * shrunk + (weights * below).sum(axis=1)
        return higher, total * shrunk + weights.sum(axis=1), tilted

    zeros = jnp.zeros(QUERIES, jnp.float32)
    carried = zeros + NOTHING, zeros, zeros
    if window is not None:
        carried = lax.fori_loop(first_tile, whole_from, partial(step, masked=True), carried)
    carried = lax.fori_loop(whole_from, whole_to, partial(step, masked=False), carried)
    top, total, tilted = lax.fori_loop(whole_to, tiles, partial(step, masked=True), carried)
    total = jnp.maximum(total, SMALLEST)
    max_ref[...] = LN2 * top
    lse_ref[...] = LN2 * top + jnp.log(total)
    entropy_ref[...] = jnp.maximum(jnp.log(total) - LN2 * tilted / total, 0.0)


def _up(count: int, size: int) -> int:
    return -(-count // size) * size


def _padded(array: Array, length: int, width: int) -> Array:
    """Return (batch, length, heads, width) filled up with zeros."""
    if array.shape[1] == length and array.shape[3] == width:
        return array
    short, narrow = length - array.shape[1], width - array.shape[3]
    return jnp.pad(array, ((0, 0), (0, short), (0, 0), (0, narrow)))
