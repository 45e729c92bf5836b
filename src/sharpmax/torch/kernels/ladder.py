"""The entropy of every row at β, 2β, 4β, …, in one pass and with one exponential a logit.

Beside l = Σ p and u = Σ p·z of the row statistics, with p = 2^z and z = β·(x − m) in base 2, it
keeps the same sums of p², p⁴, …, which are the weights at twice, four times, … the β, and
Σ p·z², which gives the variance and with it the slope dH/dβ = −β·Var(s).
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
def _ladder_kernel(
    q,
    k,
    mask,
    beta,
    entropies,
    slope,
    maximum,
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
    RUNGS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    batch = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
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
    row = tl.program_id(1).to(tl.int64) * queries + rows
    row_beta = tl.load(beta + row, mask=rows < queries, other=1.0)
    rung = tl.arange(0, BLOCK_R)[None, :]
    power = tl.exp2(rung.to(tl.float32))
    low, high = keys_seen(start, queries, keys, window, CAUSAL, WINDOW, BLOCK_M, BLOCK_N)
    m = tl.full([BLOCK_M], FAR_BELOW, tl.float32)
    l = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    u = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    square = tl.zeros([BLOCK_M], tl.float32)
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
        # What is not visible has z = 0 and weight 0: no sum of its z, or z², overflows.
        z = tl.where(visible, x - new[:, None], 0.0)
        p = tl.where(visible, tl.exp2(z), 0.0)
        down = tl.maximum(m - new, -1e4)
        fade = tl.exp2(down)
        first_l = tl.sum(tl.where(rung == 0, l, 0.0), 1)
        first_u = tl.sum(tl.where(rung == 0, u, 0.0), 1)
        square = fade * (square + down * (2 * first_u + down * first_l)) + tl.sum(p * z * z, 1)
        fades = tl.exp2(down[:, None] * power)
        u = fades * (u + down[:, None] * l)
        l = fades * l
        for i in tl.static_range(RUNGS):
            l += tl.where(rung == i, tl.sum(p, 1)[:, None], 0.0)
            u += tl.where(rung == i, tl.sum(p * z, 1)[:, None], 0.0)
            p = p * p
        m = new
    inside = rows < queries
    safe = tl.where(l == 0, 1.0, l)
    # A fused multiply-add may leave the largest z a rounding off 0, and an entropy below it.
    h = (tl.log2(safe) - power * u / safe) * LN_2
    h = tl.where((l == 0) | (h < 0), 0.0, h)
    at = row[:, None] * RUNGS + rung
    tl.store(entropies + at, h, mask=inside[:, None] & (rung < RUNGS))
    mean = tl.sum(tl.where(rung == 0, u / safe, 0.0), 1)
    total = tl.sum(tl.where(rung == 0, safe, 0.0), 1)
    variance = tl.maximum(square / total - mean * mean, 0.0) * (LN_2 * LN_2)
    tl.store(slope + row, -variance / row_beta, mask=inside)
    nothing = m == FAR_BELOW
    tl.store(maximum + row, tl.where(nothing, float("-inf"), m * LN_2 / row_beta), mask=inside)


def ladder(scores: Scores, beta: Tensor, rungs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the entropies at β·2⁰ … β·2^(rungs − 1), dH/dβ at β, and the largest logits.

    The entropies are of shape (batch, heads, queries, rungs).
    """
    batch, heads, queries = scores.shape
    device = scores.query.device
    entropies = torch.empty((*scores.shape, rungs), dtype=torch.float32, device=device)
    slope, maximum = (
        torch.empty(scores.shape, dtype=torch.float32, device=device) for _ in range(2)
    )
    arguments, settings = kernel_arguments(scores)
    tiles = _tiles(scores)
    _ladder_kernel[(ceil_div(queries, tiles["BLOCK_M"]), batch * heads)](
        *arguments[:3],
        beta.to(torch.float32).contiguous(),
        entropies,
        slope,
        maximum,
        *arguments[3:],
        RUNGS=rungs,
        BLOCK_R=power_of_2(rungs),
        **settings,
        **tiles,
    )
    return entropies, slope, maximum


def _tiles(scores: Scores) -> dict[str, int]:
    if scores.query.dtype == torch.float32:
        return FLOAT32_TILES
    if scores.query.shape[3] <= 128:
        return {"BLOCK_M": 64, "BLOCK_N": 128, "num_warps": 4, "num_stages": 2}
    return {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
