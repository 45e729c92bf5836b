"""The gradients of the row statistics by the query and by the key.

∂L/∂s = p·(g_lse − g_H·(s − mean)) is made again tile by tile from lse and H. One kernel sums it
over the keys for the queries, the other over the queries for the keys.
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
    LOG2_E,
    dot_products,
    is_visible,
    kernel_arguments,
    keys_seen,
    queries_seeing,
    softcapped,
)

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.torch.scores import Scores


@triton.jit
def _grad_logits(
    dots, lse, mean, grad_lse, grad_entropy, visible, scale, softcap, SOFTCAP: tl.constexpr
):
    """Return the gradient by scale·dots: p·(g_lse − g_H·(s − mean)), through the softcap."""
    s = softcapped(dots, scale, softcap) if SOFTCAP else dots * scale
    p = tl.where(visible, tl.exp2((s - lse) * LOG2_E), 0.0)
    grad = p * (grad_lse - grad_entropy * (s - mean))
    if SOFTCAP:
        grad *= 1 - (s / softcap) * (s / softcap)
    return grad


@triton.jit
def _row_values(lse, entropy, grad_lse, grad_entropy, at, inside):
    """Load a row's lse, mean and gradients; a row that sees nothing gets weights of 0."""
    row_lse = tl.load(lse + at, mask=inside, other=float("-inf"))
    row_entropy = tl.load(entropy + at, mask=inside, other=0.0)
    row_grad_lse = tl.load(grad_lse + at, mask=inside, other=0.0)
    row_grad_entropy = tl.load(grad_entropy + at, mask=inside, other=0.0)
    nothing = row_lse == float("-inf")
    mean = tl.where(nothing, 0.0, row_lse - row_entropy)
    return tl.where(nothing, -FAR_BELOW, row_lse), mean, row_grad_lse, row_grad_entropy


@triton.jit
def _grad_query_kernel(
    q,
    k,
    mask,
    lse,
    entropy,
    grad_lse,
    grad_entropy,
    grad_q,
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
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    batch = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    q += batch.to(tl.int64) * q_b + head.to(tl.int64) * q_h
    k += batch.to(tl.int64) * k_b + (head // GROUP).to(tl.int64) * k_h
    mask += batch.to(tl.int64) * mask_b + head.to(tl.int64) * mask_h
    rows = start + tl.arange(0, BLOCK_M)
    width = tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < queries) & (width[None, :] < WIDTH)
    tile = tl.load(q + rows[:, None].to(tl.int64) * q_l + width[None, :], mask=inside, other=0.0)
    out = tl.program_id(1).to(tl.int64) * queries + rows
    row_lse, mean, row_grad_lse, row_grad_entropy = _row_values(
        lse, entropy, grad_lse, grad_entropy, out, rows < queries
    )
    low, high = keys_seen(start, queries, keys, window, CAUSAL, WINDOW, BLOCK_M, BLOCK_N)
    grad = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for first in tl.range(low, high, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        keys_tile = tl.load(
            k + columns[:, None].to(tl.int64) * k_l + width[None, :],
            mask=(columns[:, None] < keys) & (width[None, :] < WIDTH),
            other=0.0,
        )
        dots = dot_products(tile, tl.trans(keys_tile))
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
        grad_logits = _grad_logits(
            dots,
            row_lse[:, None],
            mean[:, None],
            row_grad_lse[:, None],
            row_grad_entropy[:, None],
            visible,
            scale,
            softcap,
            SOFTCAP,
        )
        grad += tl.dot(grad_logits.to(keys_tile.dtype), keys_tile, input_precision="tf32x3")
    at = grad_q + out[:, None] * WIDTH + width[None, :]
    tl.store(at, (grad * scale).to(grad_q.dtype.element_ty), mask=inside)


@triton.jit
def _grad_key_kernel(
    q,
    k,
    mask,
    lse,
    entropy,
    grad_lse,
    grad_entropy,
    grad_k,
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
    start = tl.program_id(0) * BLOCK_N
    key_heads = heads // GROUP
    batch = tl.program_id(1) // key_heads
    key_head = tl.program_id(1) % key_heads
    columns = start + tl.arange(0, BLOCK_N)
    width = tl.arange(0, BLOCK_D)
    inside = (columns[:, None] < keys) & (width[None, :] < WIDTH)
    k += batch.to(tl.int64) * k_b + key_head.to(tl.int64) * k_h
    tile = tl.load(k + columns[:, None].to(tl.int64) * k_l + width[None, :], mask=inside, other=0.0)
    low, high = queries_seeing(start, queries, keys, window, CAUSAL, WINDOW, BLOCK_M, BLOCK_N)
    grad = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for member in tl.static_range(GROUP):
        head = key_head * GROUP + member
        q_head = q + batch.to(tl.int64) * q_b + head.to(tl.int64) * q_h
        mask_head = mask + batch.to(tl.int64) * mask_b + head.to(tl.int64) * mask_h
        for first in tl.range(low, high, BLOCK_M):
            rows = first + tl.arange(0, BLOCK_M)
            queries_tile = tl.load(
                q_head + rows[:, None].to(tl.int64) * q_l + width[None, :],
                mask=(rows[:, None] < queries) & (width[None, :] < WIDTH),
                other=0.0,
            )
            row_lse, mean, row_grad_lse, row_grad_entropy = _row_values(
                lse,
                entropy,
                grad_lse,
                grad_entropy,
                (batch * heads + head).to(tl.int64) * queries + rows,
                rows < queries,
            )
            visible = is_visible(
                rows[None, :],
                columns[:, None],
                queries,
                keys,
                window,
                mask_head,
                mask_q,
                mask_k,
                CAUSAL,
                WINDOW,
                MASK,
            )
            grad_logits = _grad_logits(
                dot_products(tile, tl.trans(queries_tile)),
                row_lse[None, :],
                mean[None, :],
                row_grad_lse[None, :],
                row_grad_entropy[None, :],
                visible,
                scale,
                softcap,
                SOFTCAP,
            )
            grad += tl.dot(grad_logits.to(tile.dtype), queries_tile, input_precision="tf32x3")
    at = (tl.program_id(1).to(tl.int64) * keys + columns)[:, None] * WIDTH + width[None, :]
    tl.store(grad_k + at, (grad * scale).to(grad_k.dtype.element_ty), mask=inside)


def statistics_backward(
    scores: Scores, lse: Tensor, entropy: Tensor, grad_lse: Tensor, grad_entropy: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients by the query and the key."""
    query, key = scores.query, scores.key
    grad_query = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    grad_key = torch.empty(key.shape, dtype=key.dtype, device=key.device)
    arguments, settings = kernel_arguments(scores)
    tensors, numbers = arguments[:3], arguments[3:]
    tensors = (*tensors, lse, entropy, grad_lse.contiguous(), grad_entropy.contiguous())
    tiles = _backward_tiles(scores)
    rows = (ceil_div(query.shape[2], tiles["BLOCK_M"]), query.shape[0] * query.shape[1])
    _grad_query_kernel[rows](*tensors, grad_query, *numbers, **settings, **tiles)
    columns = (ceil_div(key.shape[2], tiles["BLOCK_N"]), key.shape[0] * key.shape[1])
    _grad_key_kernel[columns](*tensors, grad_key, *numbers, **settings, **tiles)
    return grad_query, grad_key


def _backward_tiles(scores: Scores) -> dict[str, int]:
    """Return the tile sizes of both backward kernels, likewise."""
    if scores.query.dtype == torch.float32:
        return FLOAT32_TILES
    if scores.query.shape[-1] <= 128:
        return {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
    return {"BLOCK_M": 32, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
