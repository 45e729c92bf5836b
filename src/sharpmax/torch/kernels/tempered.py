"""Attention at a given β per row, for logits and visibility of any kind.

The running maximum, sum and output are those of flash attention, on β·logits in base 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from sharpmax.torch.kernels.rounding import ceil_div, power_of_2
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
def _tempered_kernel(
    q,
    k,
    mask,
    v,
    beta,
    out,
    lse,
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
    v_b,
    v_h,
    v_l,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    MASK: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    batch = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    q += batch.to(tl.int64) * q_b + head.to(tl.int64) * q_h
    k += batch.to(tl.int64) * k_b + (head // GROUP).to(tl.int64) * k_h
    v += batch.to(tl.int64) * v_b + (head // GROUP).to(tl.int64) * v_h
    mask += batch.to(tl.int64) * mask_b + head.to(tl.int64) * mask_h
    rows = start + tl.arange(0, BLOCK_M)
    width = tl.arange(0, BLOCK_D)
    value_width = tl.arange(0, BLOCK_V)
    tile = tl.load(
        q + rows[:, None].to(tl.int64) * q_l + width[None, :],
        mask=(rows[:, None] < queries) & (width[None, :] < WIDTH),
        other=0.0,
    )
    row = tl.program_id(1).to(tl.int64) * queries + rows
    row_beta = tl.load(beta + row, mask=rows < queries, other=1.0)
    low, high = keys_seen(start, queries, keys, window, CAUSAL, WINDOW, BLOCK_M, BLOCK_N)
    m = tl.full([BLOCK_M], FAR_BELOW, tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    for first in tl.range(low, high, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        keys_tile = tl.load(
            k + columns[:, None].to(tl.int64) * k_l + width[None, :],
            mask=(columns[:, None] < keys) & (width[None, :] < WIDTH),
            other=0.0,
        )
        dots = dot_products(tile, tl.trans(keys_tile))
        s = softcapped(dots, scale, softcap) if SOFTCAP else dots * scale
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
        x = tl.where(visible, s * (row_beta[:, None] * LOG2_E), 2 * FAR_BELOW)
        new = tl.maximum(m, tl.max(x, 1))
        w = tl.exp2(x - new[:, None])
        fade = tl.exp2(m - new)
        l = fade * l + tl.sum(w, 1)
        values_tile = tl.load(
            v + columns[:, None].to(tl.int64) * v_l + value_width[None, :],
            mask=(columns[:, None] < keys) & (value_width[None, :] < VALUE_WIDTH),
            other=0.0,
        )
        acc = acc * fade[:, None]
        acc += tl.dot(w.to(values_tile.dtype), values_tile, input_precision="tf32x3")
        m = new
    nothing = l == 0
    l = tl.where(nothing, 1.0, l)
    at = out + row[:, None] * VALUE_WIDTH + value_width[None, :]
    inside = (rows[:, None] < queries) & (value_width[None, :] < VALUE_WIDTH)
    tl.store(at, (acc / l[:, None]).to(out.dtype.element_ty), mask=inside)
    row_lse = tl.where(nothing, float("-inf"), (m + tl.log2(l)) * LN_2)
    tl.store(lse + row, row_lse, mask=rows < queries)


def tempered(scores: Scores, value: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax(β·logits)·value and the log-sum-exp of β·logits."""
    batch, heads, queries = scores.shape
    out = torch.empty((*scores.shape, value.shape[3]), dtype=value.dtype, device=value.device)
    lse = torch.empty(scores.shape, dtype=torch.float32, device=value.device)
    arguments, settings = kernel_arguments(scores)
    value = value if value.stride(-1) == 1 else value.contiguous()
    tiles = forward_tiles(scores, value)
    _tempered_kernel[(ceil_div(queries, tiles["BLOCK_M"]), batch * heads)](
        *arguments[:3],
        value,
        beta.to(torch.float32).contiguous(),
        out,
        lse,
        *arguments[3:],
        *value.stride()[:3],
        **settings | widths(scores, value),
        **tiles,
    )
    return out, lse


def widths(scores: Scores, value: Tensor) -> dict[str, int]:
    """Return the width of the values, and those of tiles of keys and of values."""
    # Values 5 wide came out wrong in bf16 on a GPU, in tiles of 16; from 64 on all were right.
    narrowest = 16 if scores.query.dtype == torch.float32 else 64
    return {
        "VALUE_WIDTH": value.shape[3],
        "BLOCK_V": max(narrowest, power_of_2(value.shape[3])),
        "BLOCK_D": max(narrowest, power_of_2(scores.query.shape[3])),
    }


def forward_tiles(scores: Scores, value: Tensor) -> dict[str, int]:
    """Return tile sizes that fit in shared memory and registers."""
    if scores.query.dtype == torch.float32:
        return FLOAT32_TILES
    widest = max(scores.query.shape[3], value.shape[3])
    if widest <= 64:
        return {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
    if widest <= 128:
        return {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3}
    return {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
