"""What the Triton kernels share: a tile of logits, and who sees what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from sharpmax.torch.kernels.rounding import power_of_2

if TYPE_CHECKING:
    from sharpmax.torch.scores import Scores

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)

FAR_BELOW = tl.constexpr(-1e30)
"""Below every logit, and finite: its exponential is 0, and so is that times itself."""

FLOAT32_TILES = {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}
"""Float32 products are split into three of tf32, which takes the room of larger tiles."""


@triton.jit
def dot_products(q, k_transposed):
    """Return q·kᵀ in float32; float32 inputs by three tf32 products, nearly as precise."""
    return tl.dot(q, k_transposed, input_precision="tf32x3")


@triton.jit
def softcapped(dots, scale, softcap):
    """Return softcap·tanh(scale·dots/softcap), by tanh|y| = (1 − e)/(1 + e), e = exp(−2|y|)."""
    e = tl.exp2(tl.abs(dots) * (-2 * LOG2_E * scale / softcap))
    tanh = (1 - e) / (1 + e)
    return softcap * tl.where(dots < 0, -tanh, tanh)


@triton.jit
def is_visible(
    rows,
    columns,
    queries,
    keys,
    window,
    mask,
    mask_q,
    mask_k,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    MASK: tl.constexpr,
):
    """Tell for a tile which keys are seen; `rows` and `columns` broadcast to the tile.

    A mask of kind 1 is the same for all queries, as padding is: it is read once for a tile's keys.
    One of kind 2 is read for every logit.
    """
    visible = (columns < keys) & (rows < queries)
    distance = rows + (keys - queries) - columns
    if CAUSAL:
        visible &= distance >= 0
    if WINDOW:
        visible &= (distance < window) & (distance > -window)
    if MASK == 1:
        at = mask + columns.to(tl.int64) * mask_k
        visible &= tl.load(at, mask=columns < keys, other=0) != 0
    if MASK == 2:
        at = mask + rows.to(tl.int64) * mask_q + columns.to(tl.int64) * mask_k
        visible &= tl.load(at, mask=visible, other=0) != 0
    return visible


@triton.jit
def keys_seen(
    start,
    queries,
    keys,
    window,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Return the range of keys that any query of the tile at `start` can see."""
    offset = keys - queries
    low = 0
    high = keys
    if CAUSAL:
        high = tl.maximum(tl.minimum(keys, start + BLOCK_M + offset), 0)
    if WINDOW:
        low = tl.maximum(start + offset - window + 1, 0) // BLOCK_N * BLOCK_N
        high = tl.minimum(high, tl.maximum(start + BLOCK_M - 1 + offset + window, 0))
    return low, high


@triton.jit
def queries_seeing(
    start,
    queries,
    keys,
    window,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Return the range of queries that can see any key of the tile at `start`."""
    offset = keys - queries
    low = 0
    high = queries
    if CAUSAL:
        low = tl.maximum(start - offset, 0) // BLOCK_M * BLOCK_M
    if WINDOW:
        low = tl.maximum(low, tl.maximum(start - offset - window + 1, 0) // BLOCK_M * BLOCK_M)
        high = tl.minimum(high, tl.maximum(start + BLOCK_N - 1 - offset + window, 0))
    return low, high


def kernel_arguments(scores: Scores) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what all kernels take: query, key and mask, then numbers; and their settings."""
    query, key = (x if x.stride(-1) == 1 else x.contiguous() for x in (scores.query, scores.key))
    batch, heads, queries = scores.shape
    mask = query.new_zeros((), dtype=torch.uint8) if scores.mask is None else scores.mask
    mask = mask.expand(batch, heads, queries, key.shape[2]).view(torch.uint8)
    width = query.shape[-1]
    arguments = (
        query,
        key,
        mask,
        *query.stride()[:3],
        *key.stride()[:3],
        *mask.stride(),
        heads,
        queries,
        key.shape[2],
        scores.window or 0,
        scores.scale,
        scores.softcap or 1.0,
    )
    settings = {
        "GROUP": heads // key.shape[1],
        "WIDTH": width,
        "CAUSAL": scores.is_causal,
        "WINDOW": scores.window is not None,
        "SOFTCAP": scores.softcap is not None,
        "MASK": 0 if scores.mask is None else 1 if mask.stride(2) == 0 else 2,
        "BLOCK_D": max(16, power_of_2(width)),
    }
    return arguments, settings
