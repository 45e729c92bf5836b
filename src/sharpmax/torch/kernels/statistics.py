"""The row statistics in one pass over the keys.

A program holds a tile of queries and streams over the keys that they see, keeping for every
row the maximum m, l = Σ 2^(x−m) and u = Σ 2^(x−m)·(x−m), where x is the logit in base 2. On a
new maximum m′ they become u ← 2^(m−m′)·(u + (m−m′)·l), l ← 2^(m−m′)·l. Tiles that every query
sees whole are worked through without masking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from sharpmax.torch.kernels.rounding import ceil_div
from sharpmax.torch.kernels.tile import (
    FAR_BELOW,
    FLOAT32_TILES,
    LN_2,
    LOG2_E,
    dot_products,
    is_visible,
    kernel_arguments,
    keys_seen,
    softcapped,
)

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.torch.scores import Scores


@triton.jit
def _joined(m, l, u, new, z):
    """Return m, l and u with a tile of logits z, below their new maximum, added."""
    p = tl.exp2(z)
    fade = tl.exp2(m - new)
    u = fade * (u + (m - new) * l) + tl.sum(p * z, 1)
    l = fade * l + tl.sum(p, 1)
    return new, l, u


@triton.jit
def _forward_kernel(
    q,
    k,
    mask,
    maximum,
    lse,
    entropy,
    q_b,
    q_h,
    q_l,
    k_b,
    k_h,
    k_l,
    mask_b,
    mask_h,
    mask_q,
    mask_k,
    heads,
    queries,
    keys,
    window,
    scale,
    softcap,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    MASK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    # The last tiles see the most keys: they go first.
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    batch = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    offset = keys - queries
    q += batch.to(tl.int64) * q_b + head.to(tl.int64) * q_h
    k += batch.to(tl.int64) * k_b + (head // GROUP).to(tl.int64) * k_h
    mask += batch.to(tl.int64) * mask_b + head.to(tl.int64) * mask_h
    rows = start + tl.arange(0, BLOCK_M)
    width = tl.arange(0, BLOCK_D)
    tile = tl.load(
        q + rows[:, None].to(tl.int64) * q_l + width[None, :],
        mask=(rows[:, None] < queries) & (width[None, :] < WIDTH),
        other=0.0,
    )

    low, high = keys_seen(start, queries, keys, window, CAUSAL, WINDOW, BLOCK_M, BLOCK_N)
    # Up to here every query of the tile sees every key.
    whole = low
    if not (WINDOW or MASK):
        whole = (tl.minimum(keys, start + offset + 1) if CAUSAL else keys) // BLOCK_N * BLOCK_N
        whole = tl.maximum(whole, 0)

    m = tl.full([BLOCK_M], FAR_BELOW, tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    u = tl.zeros([BLOCK_M], tl.float32)
    at = k + (low + tl.arange(0, BLOCK_N)).to(tl.int64)[None, :] * k_l + width[:, None]
    for _first in tl.range(low, whole, BLOCK_N):
        if WIDTH == BLOCK_D:
            keys_tile = tl.load(at)
        else:
            keys_tile = tl.load(at, mask=width[:, None] < WIDTH, other=0.0)
        at += BLOCK_N * k_l
        x = dot_products(tile, keys_tile)
        if SOFTCAP:
            x = softcapped(x, scale, softcap) * LOG2_E
            new = tl.maximum(m, tl.max(x, 1))
            z = x - new[:, None]
        else:
            new = tl.maximum(m, tl.max(x, 1) * (scale * LOG2_E))
            z = x * (scale * LOG2_E) - new[:, None]
        m, l, u = _joined(m, l, u, new, z)
    for first in tl.range(whole, high, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        keys_tile = tl.load(
            k + columns[:, None].to(tl.int64) * k_l + width[None, :],
            mask=(columns[:, None] < keys) & (width[None, :] < WIDTH),
            other=0.0,
        )
        x = dot_products(tile, tl.trans(keys_tile))
        if SOFTCAP:
            x = softcapped(x, scale, softcap) * LOG2_E
        else:
            x = x * (scale * LOG2_E)
        visible = is_visible(
            rows[:, None],
            columns[None, :],
            queries,
            keys,
            window,
            mask,
            mask_q,
            mask_k,
            CAUSAL,
            WINDOW,
            MASK,
        )
        x = tl.where(visible, x, 2 * FAR_BELOW)
        new = tl.maximum(m, tl.max(x, 1))
        z = x - new[:, None]
        m, l, u = _joined(m, l, u, new, z)

    nothing = l == 0
    l = tl.where(nothing, 1.0, l)
    minus_infinity = float("-inf")
    out = tl.program_id(1).to(tl.int64) * queries + rows
    inside = rows < queries
    tl.store(maximum + out, tl.where(nothing, minus_infinity, m * LN_2), mask=inside)
    tl.store(lse + out, tl.where(nothing, minus_infinity, (m + tl.log2(l)) * LN_2), mask=inside)
    h = (tl.log2(l) - u / l) * LN_2
    tl.store(entropy + out, tl.where(h < 0, 0.0, h), mask=inside)


def statistics(scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
    """Return the maximum, the log-sum-exp and the entropy of every row."""
    maximum, lse, entropy = (
        torch.empty(scores.shape, dtype=torch.float32, device=scores.query.device) for _ in range(3)
    )
    arguments, settings = kernel_arguments(scores)
    tiles = _forward_tiles(scores)
    batch, heads, queries = scores.shape
    grid = (ceil_div(queries, tiles["BLOCK_M"]), batch * heads)
    tensors, numbers = arguments[:3], arguments[3:]
    _forward_kernel[grid](*tensors, maximum, lse, entropy, *numbers, **settings, **tiles)
    return maximum, lse, entropy


def _forward_tiles(scores: Scores) -> dict[str, int]:
    """Return the tile sizes that were fastest on an H200."""
    if scores.query.dtype == torch.float32:
        return FLOAT32_TILES
    width = scores.query.shape[-1]
    if width <= 64:
        return {"BLOCK_M": 64, "BLOCK_N": 128, "num_warps": 4, "num_stages": 2}
    if width <= 128:
        return {"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 8, "num_stages": 2}
    return {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
