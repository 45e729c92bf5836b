"""β·q, and from the gradient by β·q to those by q and β, in one pass each."""

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


@triton.jit
def _scaled_kernel(
    q,
    beta,
    out,
    q_b,
    q_h,
    q_l,
    heads,
    queries,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
):
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    width = tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < queries) & (width[None, :] < WIDTH)
    at = batch * q_b + head * q_h + rows[:, None].to(tl.int64) * q_l + width[None, :]
    tile = tl.load(q + at, mask=inside, other=0.0).to(tl.float32)
    row = tl.program_id(1).to(tl.int64) * queries + rows
    row_beta = tl.load(beta + row, mask=rows < queries, other=1.0)
    scaled = (tile * row_beta[:, None]).to(out.dtype.element_ty)
    tl.store(out + row[:, None] * WIDTH + width[None, :], scaled, mask=inside)


@triton.jit
def _unscaled_kernel(
    grad,
    q,
    beta,
    grad_q,
    grad_beta,
    g_b,
    g_h,
    g_l,
    q_b,
    q_h,
    q_l,
    heads,
    queries,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
):
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    width = tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < queries) & (width[None, :] < WIDTH)
    at = batch * g_b + head * g_h + rows[:, None].to(tl.int64) * g_l + width[None, :]
    scaled = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    at = batch * q_b + head * q_h + rows[:, None].to(tl.int64) * q_l + width[None, :]
    tile = tl.load(q + at, mask=inside, other=0.0).to(tl.float32)
    row = tl.program_id(1).to(tl.int64) * queries + rows
    row_beta = tl.load(beta + row, mask=rows < queries, other=1.0)
    out = grad_q + row[:, None] * WIDTH + width[None, :]
    tl.store(out, (scaled * row_beta[:, None]).to(grad_q.dtype.element_ty), mask=inside)
    tl.store(grad_beta + row, tl.sum(scaled * tile, 1), mask=rows < queries)


_scaled, _unscaled = Launcher(_scaled_kernel), Launcher(_unscaled_kernel)


def scaled(query: Tensor, beta: Tensor) -> Tensor:
    """Return β·q in the dtype of q, contiguous."""
    batch, heads, queries, width = query.shape
    query = query if query.stride(-1) == 1 else query.contiguous()
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    _scaled(
        (ceil_div(queries, ROWS), batch * heads),
        (query, beta, out),
        (*query.stride()[:3], heads, queries),
        WIDTH=width,
        BLOCK_D=power_of_2(width),
        ROWS=ROWS,
    )
    return out


def unscaled(grad: Tensor, query: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Return β·grad and ⟨grad, q⟩, of rows (batch, heads, queries)."""
    batch, heads, queries, width = query.shape
    grad, query = (x if x.stride(-1) == 1 else x.contiguous() for x in (grad, query))
    grad_query = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    grad_beta = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
    _unscaled(
        (ceil_div(queries, ROWS), batch * heads),
        (grad, query, beta, grad_query, grad_beta),
        (*grad.stride()[:3], *query.stride()[:3], heads, queries),
        WIDTH=width,
        BLOCK_D=power_of_2(width),
        ROWS=ROWS,
    )
    return grad_query, grad_beta
