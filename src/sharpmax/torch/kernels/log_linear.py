"""The policy `LogLinear` in one kernel, and its gradient in another.

Every head's numbers are a row of a table.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from sharpmax.sink import FAR, FARTHER
from sharpmax.torch.kernels.launch import Launcher
from sharpmax.torch.kernels.rounding import ceil_div

if TYPE_CHECKING:
    from torch import Tensor

COLUMNS = 8
"""In a head's row: the offset, and what is added by the length, below the band and above it, of
ln β or of the sink's γ; the band's low and high end and its drift; the logarithm of the power."""
BLOCK = 256

_COLUMNS = tl.constexpr(COLUMNS)
_FAR, _FARTHER = tl.constexpr(FAR), tl.constexpr(FARTHER)


@triton.jit
def _at_least(x, least):
    """Return the larger one, and NaN for NaN, unlike Triton's own."""
    return tl.where(x < least, least, x)


@triton.jit
def _clipped(x, limit):
    return tl.where(x > limit, limit, _at_least(x, -limit))


@triton.jit
def _forward_kernel(
    length,
    table,
    entropy,
    lse,
    logit,
    out,
    n_b,
    n_h,
    n_l,
    s_b,
    s_h,
    s_l,
    heads,
    queries,
    reference,
    most,
    log_most,
    BAND: tl.constexpr,
    SINK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    plane = tl.program_id(1).to(tl.int64)
    batch, head = plane // heads, plane % heads
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < queries
    at = plane * queries + rows
    n = tl.load(length + batch * n_b + head * n_h + rows.to(tl.int64) * n_l, mask=inside, other=1.0)
    row = table + head * _COLUMNS
    linear = tl.load(row) + tl.load(row + 1) * tl.log(_at_least(n / reference, 1.0))
    if BAND:
        h = tl.load(entropy + at, mask=inside, other=0.0)
        e = h - tl.load(row + 6) * tl.log(_at_least(n, 1.0))
        linear += tl.load(row + 2) * _at_least(tl.load(row + 4) - e, 0.0)
        linear += tl.load(row + 3) * _at_least(e - tl.load(row + 5), 0.0)
    if SINK:
        sink = logit + batch * s_b + head * s_h + rows.to(tl.int64) * s_l
        others = tl.load(lse + at, mask=inside, other=0.0)
        odds = _at_least(tl.load(sink, mask=inside, other=0.0), -_FARTHER)
        odds -= _at_least(others, -_FAR)
        power = tl.exp(_clipped(tl.load(row + 7), log_most))
        tl.store(out + at, power * odds + _clipped(linear, most), mask=inside)
    else:
        tl.store(out + at, tl.exp(_clipped(linear, log_most)), mask=inside)


@triton.jit
def _backward_kernel(
    grad,
    length,
    table,
    entropy,
    lse,
    logit,
    grad_table,
    grad_entropy,
    grad_lse,
    grad_logit,
    g_b,
    g_h,
    g_l,
    n_b,
    n_h,
    n_l,
    s_b,
    s_h,
    s_l,
    heads,
    queries,
    reference,
    most,
    log_most,
    BAND: tl.constexpr,
    SINK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    plane = tl.program_id(1).to(tl.int64)
    batch, head = plane // heads, plane % heads
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < queries
    at = plane * queries + rows
    far = rows.to(tl.int64)
    g = tl.load(grad + batch * g_b + head * g_h + far * g_l, mask=inside, other=0.0)
    n = tl.load(length + batch * n_b + head * n_h + far * n_l, mask=inside, other=1.0)
    row = table + head * _COLUMNS
    growth = tl.log(_at_least(n / reference, 1.0))
    linear = tl.load(row) + tl.load(row + 1) * growth
    below, above = tl.zeros_like(n), tl.zeros_like(n)
    log_n = tl.log(_at_least(n, 1.0))
    if BAND:
        e = tl.load(entropy + at, mask=inside, other=0.0) - tl.load(row + 6) * log_n
        below = _at_least(tl.load(row + 4) - e, 0.0)
        above = _at_least(e - tl.load(row + 5), 0.0)
        linear += tl.load(row + 2) * below + tl.load(row + 3) * above
    sums = grad_table + (tl.program_id(0) * tl.num_programs(1) + plane) * _COLUMNS
    if SINK:
        sink = tl.load(logit + batch * s_b + head * s_h + far * s_l, mask=inside, other=0.0)
        others = tl.load(lse + at, mask=inside, other=0.0)
        odds = _at_least(sink, -_FARTHER) - _at_least(others, -_FAR)
        log_power = tl.load(row + 7)
        slope = g * tl.exp(_clipped(log_power, log_most))
        tl.store(grad_logit + at, tl.where(sink >= -_FARTHER, slope, 0.0), mask=inside)
        tl.store(grad_lse + at, tl.where(others >= -_FAR, -slope, 0.0), mask=inside)
        by_power = tl.sum(slope * odds, 0)
        tl.store(sums + 7, tl.where(tl.abs(log_power) <= log_most, by_power, 0.0))
        g = tl.where(tl.abs(linear) <= most, g, 0.0)
    else:
        tl.store(sums + 7, 0.0)
        g = tl.where(tl.abs(linear) <= log_most, g * tl.exp(linear), 0.0)
    tl.store(sums, tl.sum(g, 0))
    tl.store(sums + 1, tl.sum(g * growth, 0))
    tl.store(sums + 2, tl.sum(g * below, 0))
    tl.store(sums + 3, tl.sum(g * above, 0))
    if BAND:
        by_low = tl.where(below > 0, g * tl.load(row + 2), 0.0)
        by_high = tl.where(above > 0, -g * tl.load(row + 3), 0.0)
        by_entropy = -by_low - by_high
        tl.store(sums + 4, tl.sum(by_low, 0))
        tl.store(sums + 5, tl.sum(by_high, 0))
        tl.store(sums + 6, -tl.sum(by_entropy * log_n, 0))
        tl.store(grad_entropy + at, by_entropy, mask=inside)
    else:
        tl.store(sums + 4, 0.0)
        tl.store(sums + 5, 0.0)
        tl.store(sums + 6, 0.0)


_forward, _backward = Launcher(_forward_kernel), Launcher(_backward_kernel)


def log_linear(
    length: Tensor,
    table: Tensor,
    entropy: Tensor | None,
    lse: Tensor | None,
    logit: Tensor | None,
    reference: float,
    most: float,
) -> Tensor:
    """Return β of every row, or the log-odds of its sink where its logit is given.

    Args:
        length: How many keys each row sees, of shape (batch, heads, queries).
        table: The numbers of every head, `COLUMNS`.
        entropy: Of every row; None where there is no band.
        lse: Of all keys but the sink.
        logit: Of the sink.
        reference: The length up to which nothing changes with it.
        most: The bound of γ, and of β, the power and their inverses.
    """
    batch, heads, queries = length.shape
    out = torch.empty(length.shape, dtype=torch.float32, device=length.device)
    entropy, lse, band, sink = _arranged(entropy, lse, logit, out)
    logit = out if logit is None else logit
    _forward(
        (ceil_div(queries, BLOCK), batch * heads),
        (length, table.contiguous(), entropy, lse, logit, out),
        (*length.stride(), *logit.stride(), heads, queries, reference, most, math.log(most)),
        BAND=band,
        SINK=sink,
        BLOCK=BLOCK,
    )
    return out


def log_linear_backward(
    grad: Tensor,
    length: Tensor,
    table: Tensor,
    entropy: Tensor | None,
    lse: Tensor | None,
    logit: Tensor | None,
    reference: float,
    most: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients by the table, the entropies, the log-sum-exps and the sinks' logits.

    They are empty by what is not given.
    """
    batch, heads, queries = length.shape
    blocks = ceil_div(queries, BLOCK)
    sums = torch.empty((blocks * batch, heads, COLUMNS), dtype=torch.float32, device=length.device)

    def like(rows: Tensor | None) -> Tensor:
        shape = (0,) if rows is None else length.shape
        return torch.empty(shape, dtype=torch.float32, device=length.device)

    by_entropy, by_lse, by_logit = map(like, (entropy, lse, logit))
    entropy, lse, band, sink = _arranged(entropy, lse, logit, grad)
    logit = grad if logit is None else logit
    _backward(
        (blocks, batch * heads),
        (
            grad,
            length,
            table.contiguous(),
            entropy,
            lse,
            logit,
            sums,
            by_entropy,
            by_lse,
            by_logit,
        ),
        (
            *grad.stride(),
            *length.stride(),
            *logit.stride(),
            heads,
            queries,
            reference,
            most,
            math.log(most),
        ),
        BAND=band,
        SINK=sink,
        BLOCK=BLOCK,
    )
    return sums.sum(0), by_entropy, by_lse, by_logit


def _arranged(
    entropy: Tensor | None, lse: Tensor | None, logit: Tensor | None, unread: Tensor
) -> tuple[Tensor, Tensor, bool, bool]:
    """Return the rows one behind another, and which of them are there: kernels take no None."""
    first = unread if entropy is None else entropy.contiguous()
    second = unread if lse is None else lse.contiguous()
    return first, second, entropy is not None, logit is not None
