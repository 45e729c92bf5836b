"""What attention does besides where the sink stands apart, in one pass each over the queries.

The sink's logit of every query, and the mean of the sink's value and of attention to the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from sharpmax.torch.kernels.launch import Launcher
from sharpmax.torch.kernels.rounding import ceil_div, power_of_2

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 32
_SURE = tl.constexpr(80.0)
"""Log-odds beyond which single precision tells a share from 0 or from 1 no more."""


@triton.jit
def _shares(log_odds):
    """Return the share of the sink and what it leaves, each with all its digits; NaN stays so."""
    within = tl.where(log_odds > _SURE, _SURE, tl.where(log_odds < -_SURE, -_SURE, log_odds))
    odds = tl.exp(within)
    share = tl.where(log_odds < -_SURE, 0.0, odds / (1 + odds))
    return share, tl.where(log_odds > _SURE, 0.0, 1 / (1 + odds))


@triton.jit
def _tile(x, batch, head, rows, width, inside, x_b, x_h, x_l):
    """Load rows of a tensor in float32; with a stride of 0, the same row for all."""
    at = batch * x_b + head * x_h + rows[:, None].to(tl.int64) * x_l + width[None, :]
    return tl.load(x + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _logit_kernel(
    q,
    k,
    out,
    q_b,
    q_h,
    q_l,
    k_b,
    k_h,
    k_l,
    heads,
    group,
    queries,
    scale,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
):
    plane = tl.program_id(1).to(tl.int64)
    batch, head = plane // heads, plane % heads
    rows, width = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < queries) & (width[None, :] < WIDTH)
    query = _tile(q, batch, head, rows, width, inside, q_b, q_h, q_l)
    key = _tile(k, batch, head // group, rows, width, inside, k_b, k_h, k_l)
    dots = scale * tl.sum(query * key, 1)
    tl.store(out + plane * queries + rows, dots, mask=rows < queries)


@triton.jit
def _logit_backward_kernel(
    grad,
    q,
    k,
    grad_q,
    grad_k,
    q_b,
    q_h,
    q_l,
    k_b,
    k_h,
    k_l,
    heads,
    group,
    queries,
    scale,
    SHARED: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
):
    plane = tl.program_id(1).to(tl.int64)
    batch, head = plane // heads, plane % heads
    rows, width = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < queries) & (width[None, :] < WIDTH)
    query = _tile(q, batch, head, rows, width, inside, q_b, q_h, q_l)
    key = _tile(k, batch, head // group, rows, width, inside, k_b, k_h, k_l)
    row = plane * queries + rows
    g = scale * tl.load(grad + row, mask=rows < queries, other=0.0)
    at = row[:, None] * WIDTH + width[None, :]
    tl.store(grad_q + at, (g[:, None] * key).to(grad_q.dtype.element_ty), mask=inside)
    if SHARED:
        at = (tl.program_id(0) * tl.num_programs(1) + plane) * WIDTH + width
        tl.store(grad_k + at, tl.sum(g[:, None] * query, 0), mask=width < WIDTH)
    else:
        tl.store(grad_k + at, g[:, None] * query, mask=inside)


@triton.jit
def _joined_kernel(
    others,
    own,
    odds,
    out,
    o_b,
    o_h,
    o_l,
    s_b,
    s_h,
    s_l,
    heads,
    group,
    queries,
    before,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
):
    plane = tl.program_id(1).to(tl.int64)
    batch, head = plane // heads, plane % heads
    rows, width = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < queries) & (width[None, :] < WIDTH)
    behind = rows - before
    log_odds = tl.load(
        odds + plane * (queries - before) + behind,
        mask=(behind >= 0) & (rows < queries),
        other=2 * _SURE,
    )
    share, rest = _shares(log_odds)
    mixed = inside & (behind >= 0)[:, None]
    a = _tile(others, batch, head, behind, width, mixed, o_b, o_h, o_l)
    b = _tile(own, batch, head // group, rows, width, inside, s_b, s_h, s_l)
    at = (plane * queries + rows)[:, None] * WIDTH + width[None, :]
    joined = rest[:, None] * a + share[:, None] * b
    tl.store(out + at, joined.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _joined_backward_kernel(
    grad,
    others,
    own,
    odds,
    grad_others,
    grad_own,
    grad_odds,
    g_b,
    g_h,
    g_l,
    o_b,
    o_h,
    o_l,
    s_b,
    s_h,
    s_l,
    heads,
    group,
    queries,
    before,
    SHARED: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
):
    plane = tl.program_id(1).to(tl.int64)
    batch, head = plane // heads, plane % heads
    rows, width = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < queries) & (width[None, :] < WIDTH)
    behind = rows - before
    mixes = (behind >= 0) & (rows < queries)
    mixed = inside & mixes[:, None]
    row = plane * (queries - before) + behind
    log_odds = tl.load(odds + row, mask=mixes, other=2 * _SURE)
    share, rest = _shares(log_odds)
    g = _tile(grad, batch, head, rows, width, inside, g_b, g_h, g_l)
    a = _tile(others, batch, head, behind, width, mixed, o_b, o_h, o_l)
    b = _tile(own, batch, head // group, rows, width, inside, s_b, s_h, s_l)
    tl.store(grad_odds + row, share * rest * tl.sum(g * (b - a), 1), mask=mixes)
    at = row[:, None] * WIDTH + width[None, :]
    tl.store(grad_others + at, (rest[:, None] * g).to(grad_others.dtype.element_ty), mask=mixed)
    if SHARED:
        at = (tl.program_id(0) * tl.num_programs(1) + plane) * WIDTH + width
        tl.store(grad_own + at, tl.sum(share[:, None] * g, 0), mask=width < WIDTH)
    else:
        at = (plane * queries + rows)[:, None] * WIDTH + width[None, :]
        tl.store(grad_own + at, share[:, None] * g, mask=inside)


_logit, _logit_backward = Launcher(_logit_kernel), Launcher(_logit_backward_kernel)
_joined, _joined_backward = Launcher(_joined_kernel), Launcher(_joined_backward_kernel)


def sink_logit(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Return scale·⟨q, k⟩ of every query and its sink's key, in float32.

    Args:
        query: Of shape (batch, heads, queries, width).
        key: Of shape (batch, key heads, 1 or queries, width).
        scale: What the products are multiplied by.
    """
    query, key = _with_rows(query), _with_rows(key)
    out = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
    _launch(_logit, query.shape, (query, key, out), (query, key), key.shape[1], scale)
    return out


def sink_logit_backward(
    grad: Tensor, query: Tensor, key: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the gradients by the query and by the sinks' keys."""
    query, key, grad = _with_rows(query), _with_rows(key), grad.contiguous()
    by_query = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    sums = _sums(query.shape, key)
    _launch(
        _logit_backward,
        query.shape,
        (grad, query, key, by_query, sums),
        (query, key),
        key.shape[1],
        scale,
        SHARED=key.shape[2] == 1,
    )
    return by_query, _summed(sums, key)


def sink_joined(others: Tensor, own: Tensor, odds: Tensor, before: int) -> Tensor:
    """Return σ(−odds)·others + σ(odds)·own of every query; the first have their own alone.

    Args:
        others: Attention to all keys but the sink, of shape (batch, heads, queries, width).
        own: The sink's value, of shape (batch, key heads, 1 or queries, width).
        odds: The logarithm of the sink's odds, of shape (batch, heads, queries).
        before: How many queries come before the others, and see no key but their sink.
    """
    others, own = _with_rows(others), _with_rows(own)
    batch, heads, behind, width = others.shape
    shape = batch, heads, before + behind, width
    out = torch.empty(shape, dtype=others.dtype, device=others.device)
    tensors = others, own, odds.contiguous(), out
    _launch(_joined, shape, tensors, (others, own), own.shape[1], before)
    return out


def sink_joined_backward(
    grad: Tensor, others: Tensor, own: Tensor, odds: Tensor, before: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients by the others, by the sinks' values and by their odds."""
    others, own, grad = _with_rows(others), _with_rows(own), _with_rows(grad)
    by_others = torch.empty(others.shape, dtype=others.dtype, device=others.device)
    by_odds = torch.empty(others.shape[:3], dtype=torch.float32, device=others.device)
    sums = _sums(grad.shape, own)
    _launch(
        _joined_backward,
        grad.shape,
        (grad, others, own, odds.contiguous(), by_others, sums, by_odds),
        (grad, others, own),
        own.shape[1],
        before,
        SHARED=own.shape[2] == 1,
    )
    return by_others, _summed(sums, own), by_odds


def _launch(
    kernel: Launcher,
    shape: torch.Size | tuple[int, ...],
    tensors: tuple[Tensor, ...],
    strided: tuple[Tensor, ...],
    key_heads: int,
    number: float,
    **settings: bool,
) -> None:
    """Launch a kernel on tiles of some queries each."""
    batch, heads, queries, width = shape
    kernel(
        (ceil_div(queries, ROWS), batch * heads),
        tensors,
        (*(s for x in strided for s in _strides(x)), heads, heads // key_heads, queries, number),
        **settings,
        WIDTH=width,
        BLOCK_D=power_of_2(width),
        ROWS=ROWS,
    )


def _strides(tensor: Tensor) -> tuple[int, int, int]:
    batch, head, row, _ = tensor.stride()
    return batch, head, 0 if tensor.shape[2] == 1 else row


def _with_rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _sums(shape: torch.Size, sinks: Tensor) -> Tensor:
    """Return room for the gradients by the sinks: a sum for each program, or each query's own."""
    batch, heads, queries, width = shape
    rows = ceil_div(queries, ROWS) if sinks.shape[2] == 1 else queries
    places = (rows, batch, heads) if sinks.shape[2] == 1 else (batch, heads, rows)
    return torch.empty((*places, width), dtype=torch.float32, device=sinks.device)


def _summed(sums: Tensor, sinks: Tensor) -> Tensor:
    """Return the gradients by the sinks, of all heads that share one and all queries that do."""
    batch, heads, queries, width = sinks.shape
    total = sums.sum(0).unsqueeze(2) if queries == 1 else sums
    return total.view(batch, heads, -1, queries, width).sum(2).to(sinks.dtype)
