"""The sharpened softmax of rows at hand, and its gradient, in as few passes as the rows allow.

A row is worked on as z = s − max(s), where hidden logits are very low but finite. A program
that can hold its rows reads them once: with l = Σ eᶻ and u = Σ z·eᶻ it knows the entropy
H = ln l − u/l, from that β, and from the same registers the weights e^(β·z)/t, t = Σ e^(β·z).
Longer rows are streamed, at a β that was chosen from their statistics before: once for t, and
once for the weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from sharpmax.torch.kernels.polynomial import polynomial_beta, polynomial_slope
from sharpmax.torch.kernels.rounding import ceil_div, power_of_2
from sharpmax.torch.kernels.tile import FAR_BELOW, LN_2, LOG2_E

if TYPE_CHECKING:
    from torch import Tensor

HELD_NUMBERS = 2**15
"""How many numbers of its rows' arrays a program holds in registers."""

GIVEN_BETA = {"threshold": 0.0, "minimum": 0.0, "end": 0.0, "COEFFICIENTS": None, "DEGREE": 0}
"""In place of `polynomial_settings`, where β is an argument."""


def fits(length: int, arrays: int) -> bool:
    """Tell whether a program can hold whole rows of so many arrays."""
    return bool(power_of_2(length) * arrays <= HELD_NUMBERS)


@triton.jit
def _logits(
    logits, mask, count, length, stride, mask_stride, mask_step, rows, columns, LOWEST: tl.constexpr
):
    """Load a tile of logits in float32, −inf where they are hidden, and tell what is inside."""
    rows = rows.to(tl.int64)[:, None]
    columns = columns[None, :]
    inside = (rows < count) & (columns < length)
    s = tl.load(logits + rows * stride + columns, mask=inside, other=float("-inf")).to(tl.float32)
    s = tl.where(s <= LOWEST, float("-inf"), s)
    if mask is not None:
        at = mask + rows * mask_stride + columns.to(tl.int64) * mask_step
        s = tl.where(tl.load(at, mask=inside, other=0) != 0, s, float("-inf"))
    return s, inside


@triton.jit
def _reference(maximum):
    """Return the point that z is measured from: the maximum, or 0 where nothing is visible."""
    return tl.where(maximum == float("-inf"), 0.0, maximum)


@triton.jit
def _below(s, reference):
    """Return s − reference, finite where s is −inf; NaN stays NaN."""
    z = s - reference
    return tl.where(z < FAR_BELOW, FAR_BELOW, z)


@triton.jit
def _exp(z):
    return tl.exp2(z * LOG2_E)


@triton.jit
def _or_one(total):
    """Return the total, or 1 for a row with nothing visible, whose weights are then 0/1."""
    return tl.where(total == 0, 1.0, total)


@triton.jit
def _statistics_kernel(
    logits,
    mask,
    statistics,
    count,
    length,
    stride,
    mask_stride,
    mask_step,
    LOWEST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Write max, lse, entropy, length and ln l of every row, in one streaming pass.

    On a new maximum m′, u ← e^(m−m′)·(u + (m−m′)·l) and l ← e^(m−m′)·l.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    u = tl.zeros([BLOCK_M], tl.float32)
    n = tl.zeros([BLOCK_M], tl.float32)
    for start in tl.range(0, length, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        s, _ = _logits(
            logits, mask, count, length, stride, mask_stride, mask_step, rows, columns, LOWEST
        )
        new = tl.maximum(m, tl.max(s, 1))
        z = _below(s, _reference(new)[:, None])
        p = _exp(z)
        step = _below(m, _reference(new))
        u = _exp(step) * (u + step * l) + tl.sum(p * z, 1)
        l = _exp(step) * l + tl.sum(p, 1)
        n += tl.sum(tl.where(s == float("-inf"), 0.0, 1.0), 1)
        m = new
    log_total = tl.log2(_or_one(l)) * LN_2
    at = statistics + rows.to(tl.int64) * 5
    inside = rows < count
    tl.store(at, m, mask=inside)
    tl.store(at + 1, m + log_total, mask=inside)
    tl.store(at + 2, log_total - u / _or_one(l), mask=inside)
    tl.store(at + 3, n, mask=inside)
    tl.store(at + 4, log_total, mask=inside)


@triton.jit
def _statistics_backward_kernel(
    logits,
    mask,
    statistics,
    grad_lse,
    grad_entropy,
    grad_logits,
    count,
    length,
    stride,
    mask_stride,
    mask_step,
    LOWEST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Write p·(g_lse − g_H·(s − mean)), where p = softmax(s)."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    at = statistics + rows.to(tl.int64) * 5
    m = _reference(tl.load(at, mask=rows < count, other=0.0))
    entropy = tl.load(at + 2, mask=rows < count, other=0.0)
    log_total = tl.load(at + 4, mask=rows < count, other=0.0)
    row_grad_lse = tl.load(grad_lse + rows, mask=rows < count, other=0.0)
    row_grad_entropy = tl.load(grad_entropy + rows, mask=rows < count, other=0.0)
    for start in tl.range(0, length, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        s, inside = _logits(
            logits, mask, count, length, stride, mask_stride, mask_step, rows, columns, LOWEST
        )
        z = _below(s, m[:, None])
        p = _exp(z - log_total[:, None])
        deviation = z - (log_total - entropy)[:, None]
        grad = p * (row_grad_lse[:, None] - row_grad_entropy[:, None] * deviation)
        out = rows.to(tl.int64)[:, None] * length + columns[None, :]
        tl.store(grad_logits + out, grad.to(grad_logits.dtype.element_ty), mask=inside)


@triton.jit
def _softmax_kernel(
    logits,
    mask,
    weights,
    beta,
    numbers,
    count,
    length,
    stride,
    mask_stride,
    mask_step,
    threshold,
    minimum,
    end,
    COEFFICIENTS: tl.constexpr,
    DEGREE: tl.constexpr,
    BETA_BY_ROW: tl.constexpr,
    LOWEST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Write the weights of rows that fit: one read, one write.

    For the gradient `numbers` keeps m and t of every row, and of a polynomial β, H and l.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    s, inside = _logits(
        logits, mask, count, length, stride, mask_stride, mask_step, rows, columns, LOWEST
    )
    m = _reference(tl.max(s, 1))
    z = _below(s, m[:, None])
    at = rows.to(tl.int64)
    if COEFFICIENTS is not None:
        p = _exp(z)
        l = _or_one(tl.sum(p, 1))
        entropy = tl.log2(l) * LN_2 - tl.sum(p * z, 1) / l
        row_beta = polynomial_beta(entropy, threshold, minimum, end, COEFFICIENTS, DEGREE)
        if numbers is not None:
            tl.store(numbers + at * 5 + 2, row_beta, mask=rows < count)
            tl.store(numbers + at * 5 + 3, entropy, mask=rows < count)
            tl.store(numbers + at * 5 + 4, l, mask=rows < count)
    elif BETA_BY_ROW:
        row_beta = tl.load(beta + at, mask=rows < count, other=1.0)
    else:
        row_beta = tl.zeros_like(m) + beta
    e = _exp(z * row_beta[:, None])
    t = _or_one(tl.sum(e, 1))
    if numbers is not None:
        tl.store(numbers + at * 5, m, mask=rows < count)
        tl.store(numbers + at * 5 + 1, t, mask=rows < count)
    out = weights + at[:, None] * length + columns[None, :]
    tl.store(out, (e * (1 / t)[:, None]).to(weights.dtype.element_ty), mask=inside)


@triton.jit
def _long_softmax_kernel(
    logits,
    mask,
    weights,
    beta,
    numbers,
    count,
    length,
    stride,
    mask_stride,
    mask_step,
    BETA_BY_ROW: tl.constexpr,
    LOWEST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Write the weights of rows of any length at a given β: two reads, one write."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    at = rows.to(tl.int64)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    t = tl.zeros([BLOCK_M], tl.float32)
    if BETA_BY_ROW:
        row_beta = tl.load(beta + at, mask=rows < count, other=1.0)
    else:
        row_beta = t + beta
    for start in tl.range(0, length, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        s, _ = _logits(
            logits, mask, count, length, stride, mask_stride, mask_step, rows, columns, LOWEST
        )
        new = tl.maximum(m, tl.max(s, 1))
        z = _below(s, _reference(new)[:, None])
        fade = _exp(_below(m, _reference(new)) * row_beta)
        t = fade * t + tl.sum(_exp(z * row_beta[:, None]), 1)
        m = new
    m = _reference(m)
    t = _or_one(t)
    if numbers is not None:
        tl.store(numbers + at * 5, m, mask=rows < count)
        tl.store(numbers + at * 5 + 1, t, mask=rows < count)
    for start in tl.range(0, length, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        s, inside = _logits(
            logits, mask, count, length, stride, mask_stride, mask_step, rows, columns, LOWEST
        )
        e = _exp(_below(s, m[:, None]) * row_beta[:, None])
        out = weights + at[:, None] * length + columns[None, :]
        tl.store(out, (e * (1 / t)[:, None]).to(weights.dtype.element_ty), mask=inside)


@triton.jit
def _softmax_backward_kernel(
    logits,
    mask,
    grad_weights,
    beta,
    numbers,
    grad_logits,
    grad_beta,
    count,
    length,
    stride,
    mask_stride,
    mask_step,
    grad_stride,
    threshold,
    minimum,
    end,
    COEFFICIENTS: tl.constexpr,
    DEGREE: tl.constexpr,
    BETA_BY_ROW: tl.constexpr,
    LOWEST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Write the gradients of rows that fit, from one read of the logits and of g.

    With c = Σ g·y: ∂β = Σ y·(g − c)·z, and ∂s = β·y·(g − c) − ∂β·dβ/dH·p·(s − mean).
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    s, inside = _logits(
        logits, mask, count, length, stride, mask_stride, mask_step, rows, columns, LOWEST
    )
    at = rows.to(tl.int64)
    g = tl.load(
        grad_weights + at[:, None] * grad_stride + columns[None, :], mask=inside, other=0.0
    ).to(tl.float32)
    m = tl.load(numbers + at * 5, mask=rows < count, other=0.0)
    t = tl.load(numbers + at * 5 + 1, mask=rows < count, other=1.0)
    if COEFFICIENTS is not None:
        row_beta = tl.load(numbers + at * 5 + 2, mask=rows < count, other=1.0)
    elif BETA_BY_ROW:
        row_beta = tl.load(beta + at, mask=rows < count, other=1.0)
    else:
        row_beta = tl.zeros_like(m) + beta
    z = _below(s, m[:, None])
    y = _exp(z * row_beta[:, None]) * (1 / t)[:, None]
    c = tl.sum(g * y, 1)
    d = y * (g - c[:, None])
    grad = row_beta[:, None] * d
    if COEFFICIENTS is not None:
        entropy = tl.load(numbers + at * 5 + 3, mask=rows < count, other=0.0)
        l = tl.load(numbers + at * 5 + 4, mask=rows < count, other=1.0)
        slope = polynomial_slope(entropy, threshold, minimum, end, COEFFICIENTS, DEGREE)
        grad_entropy = tl.sum(d * z, 1) * slope
        deviation = z - (tl.log2(l) * LN_2 - entropy)[:, None]
        grad -= (grad_entropy / l)[:, None] * (_exp(z) * deviation)
    elif BETA_BY_ROW:
        tl.store(grad_beta + at, tl.sum(d * z, 1), mask=rows < count)
    out = grad_logits + at[:, None] * length + columns[None, :]
    tl.store(out, grad.to(grad_logits.dtype.element_ty), mask=inside)


@triton.jit
def _long_softmax_backward_kernel(
    logits,
    mask,
    grad_weights,
    beta,
    numbers,
    grad_logits,
    grad_beta,
    count,
    length,
    stride,
    mask_stride,
    mask_step,
    grad_stride,
    BETA_BY_ROW: tl.constexpr,
    LOWEST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Write the gradients of rows of any length at a given β: once for c, once for the rest."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    at = rows.to(tl.int64)
    m = tl.load(numbers + at * 5, mask=rows < count, other=0.0)
    t = tl.load(numbers + at * 5 + 1, mask=rows < count, other=1.0)
    if BETA_BY_ROW:
        row_beta = tl.load(beta + at, mask=rows < count, other=1.0)
    else:
        row_beta = tl.zeros_like(m) + beta
    c = tl.zeros([BLOCK_M], tl.float32)
    row_grad_beta = tl.zeros([BLOCK_M], tl.float32)
    for turn in tl.static_range(2):
        for start in tl.range(0, length, BLOCK_N):
            columns = start + tl.arange(0, BLOCK_N)
            s, inside = _logits(
                logits, mask, count, length, stride, mask_stride, mask_step, rows, columns, LOWEST
            )
            g = tl.load(
                grad_weights + at[:, None] * grad_stride + columns[None, :], mask=inside, other=0.0
            ).to(tl.float32)
            z = _below(s, m[:, None])
            y = _exp(z * row_beta[:, None]) * (1 / t)[:, None]
            if turn == 0:
                c += tl.sum(g * y, 1)
            else:
                d = y * (g - c[:, None])
                row_grad_beta += tl.sum(d * z, 1)
                out = grad_logits + at[:, None] * length + columns[None, :]
                grad = (row_beta[:, None] * d).to(grad_logits.dtype.element_ty)
                tl.store(out, grad, mask=inside)
    if BETA_BY_ROW:
        tl.store(grad_beta + at, row_grad_beta, mask=rows < count)


def statistics(logits: Tensor, where: Tensor | None) -> Tensor:
    """Return max, lse, entropy, length and lse − max of every row, of shape (rows, 5)."""
    found = _numbers(logits)
    grid, tiles = _tiles(logits, arrays=1, whole=False)
    with torch.cuda.device_of(logits):
        _statistics_kernel[grid](logits, _bytes(where), found, *_layout(logits, where), **tiles)
    return found


def statistics_backward(
    logits: Tensor,
    where: Tensor | None,
    found: Tensor,
    grad_lse: Tensor,
    grad_entropy: Tensor,
) -> Tensor:
    """Return the gradient by the logits, given what `statistics` found."""
    grad_logits = _like(logits)
    grid, tiles = _tiles(logits, arrays=1, whole=False)
    tensors = (found, grad_lse.contiguous(), grad_entropy.contiguous(), grad_logits)
    with torch.cuda.device_of(logits):
        _statistics_backward_kernel[grid](
            logits, _bytes(where), *tensors, *_layout(logits, where), **tiles
        )
    return grad_logits


def softmax(
    logits: Tensor,
    where: Tensor | None,
    beta: Tensor | float | None,
    polynomial: dict[str, Any] | None,
    *,
    keep: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return softmax(β·s), and what its gradient needs to know of the rows if `keep`.

    Args:
        logits: Of shape (rows, length), the last axis contiguous.
        where: Which logits are visible, of the same shape; None where all are.
        beta: One number, or one a row in float32; None for a polynomial.
        polynomial: From `polynomial_settings`, for rows that fit; None where β is given.
        keep: Whether there will be a gradient.
    """
    weights = _like(logits)
    numbers = _numbers(logits) if keep else None
    whole = fits(logits.shape[1], arrays=1)
    grid, tiles = _tiles(logits, arrays=1, whole=whole)
    tensors = (logits, _bytes(where), weights, beta, numbers)
    settings = {"BETA_BY_ROW": isinstance(beta, torch.Tensor), **tiles}
    with torch.cuda.device_of(logits):
        if whole:
            settings |= GIVEN_BETA if polynomial is None else polynomial
            _softmax_kernel[grid](*tensors, *_layout(logits, where), **settings)
        else:
            _long_softmax_kernel[grid](*tensors, *_layout(logits, where), **settings)
    return weights, numbers


def softmax_backward(
    logits: Tensor,
    where: Tensor | None,
    beta: Tensor | float | None,
    polynomial: dict[str, Any] | None,
    numbers: Tensor,
    grad_weights: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients by the logits and, where β is given by row, by β."""
    if grad_weights.stride(1) != 1:
        grad_weights = grad_weights.contiguous()
    grad_logits = _like(logits)
    grad_beta = torch.empty_like(beta) if isinstance(beta, torch.Tensor) else None
    whole = fits(logits.shape[1], arrays=2)
    grid, tiles = _tiles(logits, arrays=2, whole=whole)
    tensors = (logits, _bytes(where), grad_weights, beta, numbers, grad_logits, grad_beta)
    layout = (*_layout(logits, where), grad_weights.stride(0))
    settings = {"BETA_BY_ROW": grad_beta is not None, **tiles}
    with torch.cuda.device_of(logits):
        if whole:
            settings |= GIVEN_BETA if polynomial is None else polynomial
            _softmax_backward_kernel[grid](*tensors, *layout, **settings)
        else:
            _long_softmax_backward_kernel[grid](*tensors, *layout, **settings)
    return grad_logits, grad_beta


def _like(logits: Tensor) -> Tensor:
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)


def _numbers(logits: Tensor) -> Tensor:
    return torch.empty((logits.shape[0], 5), dtype=torch.float32, device=logits.device)


def _bytes(where: Tensor | None) -> Tensor | None:
    return None if where is None else where.view(torch.uint8)


def _layout(logits: Tensor, where: Tensor | None) -> tuple[int, ...]:
    """Return the shape of the logits, their rows' stride and the strides of the mask."""
    return (*logits.shape, logits.stride(0), *((0, 0) if where is None else where.stride()))


def _tiles(logits: Tensor, *, arrays: int, whole: bool) -> tuple[tuple[int], dict[str, Any]]:
    """Return the grid and the tiles: whole rows, several if they are short, or a part of one.

    A thread holds 8 or 16 numbers of an array, and 32 only where the rows leave no choice.
    """
    count, length = logits.shape
    block = power_of_2(length)
    if not whole:
        block = min(block, HELD_NUMBERS // 4)
    rows = max(1, 1024 // block)
    size = rows * block
    warps = 32 if arrays * size > 2**14 else min(16, max(4, size // 512))
    tiles = {"LOWEST": torch.finfo(logits.dtype).min, "BLOCK_M": rows, "BLOCK_N": block}
    return (ceil_div(count, rows),), {**tiles, "num_warps": warps}
