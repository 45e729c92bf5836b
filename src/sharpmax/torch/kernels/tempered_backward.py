"""The gradients of attention at a given β, for logits and visibility of any kind.

With weights p = exp(β·s − lse) and Δ = ⟨∂L/∂out, out⟩, the gradient by β·s is p·(∂L/∂out·v − Δ).
One kernel sums it over the keys for the queries and β, the other over the queries for the keys
and values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from sharpmax.torch.kernels.rounding import ceil_div
from sharpmax.torch.kernels.tempered import widths
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
def _weights_and_gradient(
    dots, grad_weights, beta, lse, delta, visible, scale, softcap, SOFTCAP: tl.constexpr
):
    """Return the weights p, the gradient by β·s, ln p and the slope of s by scale·dots."""
    s = softcapped(dots, scale, softcap) if SOFTCAP else dots * scale
    slope = 1 - (s / softcap) * (s / softcap) if SOFTCAP else tl.full(s.shape, 1.0, tl.float32)
    log_p = beta * s - lse
    p = tl.where(visible, tl.exp2(log_p * LOG2_E), 0.0)
    return p, p * (grad_weights - delta), log_p, slope


@triton.jit
def _row_values(beta, lse, delta, at, inside):
    """Load a row's β, lse and Δ; a row that sees nothing gets weights of 0."""
    row_beta = tl.load(beta + at, mask=inside, other=1.0)
    row_lse = tl.load(lse + at, mask=inside, other=float("-inf"))
    row_delta = tl.load(delta + at, mask=inside, other=0.0)
    return row_beta, tl.where(row_lse == float("-inf"), -FAR_BELOW, row_lse), row_delta


@triton.jit
def _grad_query_kernel(
    q,
    k,
    mask,
    v,
    grad_out,
    beta,
    lse,
    delta,
    grad_q,
    grad_beta,
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
    inside = (rows[:, None] < queries) & (width[None, :] < WIDTH)
    tile = tl.load(q + rows[:, None].to(tl.int64) * q_l + width[None, :], mask=inside, other=0.0)
    row = tl.program_id(1).to(tl.int64) * queries + rows
    out_tile = tl.load(
        grad_out + row[:, None] * VALUE_WIDTH + value_width[None, :],
        mask=(rows[:, None] < queries) & (value_width[None, :] < VALUE_WIDTH),
        other=0.0,
    )
    row_beta, row_lse, row_delta = _row_values(beta, lse, delta, row, rows < queries)
    low, high = keys_seen(start, queries, keys, window, CAUSAL, WINDOW, BLOCK_M, BLOCK_N)
    grad = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    grad_row_beta = tl.zeros([BLOCK_M], tl.float32)
    for first in tl.range(low, high, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        keys_tile = tl.load(
            k + columns[:, None].to(tl.int64) * k_l + width[None, :],
            mask=(columns[:, None] < keys) & (width[None, :] < WIDTH),
            other=0.0,
        )
        values_tile = tl.load(
            v + columns[:, None].to(tl.int64) * v_l + value_width[None, :],
            mask=(columns[:, None] < keys) & (value_width[None, :] < VALUE_WIDTH),
            other=0.0,
        )
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
        _, grad_logits, log_p, slope = _weights_and_gradient(
            dot_products(tile, tl.trans(keys_tile)),
            dot_products(out_tile, tl.trans(values_tile)),
            row_beta[:, None],
            row_lse[:, None],
            row_delta[:, None],
            visible,
            scale,
            softcap,
            SOFTCAP,
        )
        # The gradient by β is Σ s·grad_logits; as these sum to 0, also of ln p in place of β·s.
        grad_row_beta += tl.sum(tl.where(visible, grad_logits * log_p, 0.0), 1)
        grad_logits = (grad_logits * slope).to(keys_tile.dtype)
        grad += tl.dot(grad_logits, keys_tile, input_precision="tf32x3")
    at = grad_q + row[:, None] * WIDTH + width[None, :]
    grad = grad * (scale * row_beta[:, None])
    tl.store(at, grad.to(grad_q.dtype.element_ty), mask=inside)
    tl.store(grad_beta + row, grad_row_beta / row_beta, mask=rows < queries)


@triton.jit
def _grad_key_kernel(
    q,
    k,
    mask,
    v,
    grad_out,
    beta,
    lse,
    delta,
    grad_k,
    grad_v,
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
    start = tl.program_id(0) * BLOCK_N
    key_heads = heads // GROUP
    batch = tl.program_id(1) // key_heads
    key_head = tl.program_id(1) % key_heads
    columns = start + tl.arange(0, BLOCK_N)
    width = tl.arange(0, BLOCK_D)
    value_width = tl.arange(0, BLOCK_V)
    inside = (columns[:, None] < keys) & (width[None, :] < WIDTH)
    inside_value = (columns[:, None] < keys) & (value_width[None, :] < VALUE_WIDTH)
    k += batch.to(tl.int64) * k_b + key_head.to(tl.int64) * k_h
    v += batch.to(tl.int64) * v_b + key_head.to(tl.int64) * v_h
    tile = tl.load(k + columns[:, None].to(tl.int64) * k_l + width[None, :], mask=inside, other=0.0)
    value_tile = tl.load(
        v + columns[:, None].to(tl.int64) * v_l + value_width[None, :], mask=inside_value, other=0.0
    )
    low, high = queries_seeing(start, queries, keys, window, CAUSAL, WINDOW, BLOCK_M, BLOCK_N)
    grad = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    grad_value = tl.zeros([BLOCK_N, BLOCK_V], tl.float32)
    for member in tl.static_range(GROUP):
        head = key_head * GROUP + member
        q_head = q + batch.to(tl.int64) * q_b + head.to(tl.int64) * q_h
        mask_head = mask + batch.to(tl.int64) * mask_b + head.to(tl.int64) * mask_h
        for first in tl.range(low, high, BLOCK_M):
            rows = first + tl.arange(0, BLOCK_M)
            row = (batch * heads + head).to(tl.int64) * queries + rows
            queries_tile = tl.load(
                q_head + rows[:, None].to(tl.int64) * q_l + width[None, :],
                mask=(rows[:, None] < queries) & (width[None, :] < WIDTH),
                other=0.0,
            )
            out_tile = tl.load(
                grad_out + row[:, None] * VALUE_WIDTH + value_width[None, :],
                mask=(rows[:, None] < queries) & (value_width[None, :] < VALUE_WIDTH),
                other=0.0,
            )
            row_beta, row_lse, row_delta = _row_values(beta, lse, delta, row, rows < queries)
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
            p, grad_logits, _, slope = _weights_and_gradient(
                dot_products(tile, tl.trans(queries_tile)),
                dot_products(value_tile, tl.trans(out_tile)),
                row_beta[None, :],
                row_lse[None, :],
                row_delta[None, :],
                visible,
                scale,
                softcap,
                SOFTCAP,
            )
            grad_value += tl.dot(p.to(out_tile.dtype), out_tile, input_precision="tf32x3")
            grad_logits = (grad_logits * slope * row_beta[None, :]).to(queries_tile.dtype)
            grad += tl.dot(grad_logits, queries_tile, input_precision="tf32x3")
    plane = tl.program_id(1).to(tl.int64) * keys + columns
    at = grad_k + plane[:, None] * WIDTH + width[None, :]
    tl.store(at, (grad * scale).to(grad_k.dtype.element_ty), mask=inside)
    at = grad_v + plane[:, None] * VALUE_WIDTH + value_width[None, :]
    tl.store(at, grad_value.to(grad_v.dtype.element_ty), mask=inside_value)


def tempered_backward(
    scores: Scores, value: Tensor, beta: Tensor, out: Tensor, lse: Tensor, grad_out: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients by the query, the key, the value and β."""
    query, key = scores.query, scores.key
    grad_out = grad_out.contiguous()
    delta = (grad_out.float() * out.float()).sum(-1)
    grad_query, grad_key, grad_value = (
        torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (query, key, value)
    )
    grad_beta = torch.empty(scores.shape, dtype=torch.float32, device=query.device)
    arguments, settings = kernel_arguments(scores)
    settings |= widths(scores, value)
    value = value if value.stride(-1) == 1 else value.contiguous()
    tensors = (*arguments[:3], value, grad_out, beta.to(torch.float32).contiguous(), lse, delta)
    numbers = (*arguments[3:], *value.stride()[:3])
    tiles = _backward_tiles(scores, value)
    rows = (ceil_div(query.shape[2], tiles["BLOCK_M"]), query.shape[0] * query.shape[1])
    _grad_query_kernel[rows](*tensors, grad_query, grad_beta, *numbers, **settings, **tiles)
    columns = (ceil_div(key.shape[2], tiles["BLOCK_N"]), key.shape[0] * key.shape[1])
    _grad_key_kernel[columns](*tensors, grad_key, grad_value, *numbers, **settings, **tiles)
    return grad_query, grad_key, grad_value, grad_beta


def _backward_tiles(scores: Scores, value: Tensor) -> dict[str, int]:
    if scores.query.dtype == torch.float32:
        return FLOAT32_TILES
    if max(scores.query.shape[3], value.shape[3]) <= 128:
        return {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
    return {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
