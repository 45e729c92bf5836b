"""A polynomial policy inside a kernel, for kernels that hold a row only once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from sharpmax.policies import Fixed, Polynomial
from sharpmax.torch.kernels.launch import Launcher
from sharpmax.torch.kernels.rounding import ceil_div

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.policy import Policy


@triton.jit
def polynomial_beta(
    entropy, threshold, minimum, end, COEFFICIENTS: tl.constexpr, DEGREE: tl.constexpr
):
    """Return β = max(poly(min(H, end)), minimum) where H > threshold, else 1."""
    within = tl.minimum(entropy, end)
    beta = tl.zeros_like(entropy)
    for power in tl.static_range(DEGREE + 1):
        beta = beta * within + COEFFICIENTS[power]
    return tl.where(entropy > threshold, tl.maximum(beta, minimum), 1.0)


@triton.jit
def polynomial_slope(
    entropy, threshold, minimum, end, COEFFICIENTS: tl.constexpr, DEGREE: tl.constexpr
):
    """Return dβ/dH: 0 where β is held, at its minimum or left alone."""
    within = tl.minimum(entropy, end)
    beta = tl.zeros_like(entropy)
    slope = tl.zeros_like(entropy)
    for power in tl.static_range(DEGREE + 1):
        slope = slope * within + beta
        beta = beta * within + COEFFICIENTS[power]
    free = (entropy > threshold) & (entropy < end) & (beta > minimum)
    return tl.where(free, slope, 0.0)


@triton.jit
def _polynomial_kernel(
    entropy,
    beta,
    slope,
    rows,
    threshold,
    minimum,
    end,
    COEFFICIENTS: tl.constexpr,
    DEGREE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    h = tl.load(entropy + at, mask=at < rows, other=0.0)
    b = polynomial_beta(h, threshold, minimum, end, COEFFICIENTS, DEGREE)
    tl.store(beta + at, b, mask=at < rows)
    db = polynomial_slope(h, threshold, minimum, end, COEFFICIENTS, DEGREE)
    tl.store(slope + at, db, mask=at < rows)


_polynomial = Launcher(_polynomial_kernel)


def polynomial(
    entropy: Tensor, coefficients: list[float], threshold: float, minimum: float, end: float
) -> tuple[Tensor, Tensor]:
    """Return β and dβ/dH of every entropy."""
    entropy = entropy.contiguous()
    beta, slope = torch.empty_like(entropy), torch.empty_like(entropy)
    rows = entropy.numel()
    _polynomial(
        (ceil_div(rows, 1024), 1),
        (entropy, beta, slope),
        (rows, threshold, minimum, end),
        COEFFICIENTS=tuple(coefficients),
        DEGREE=len(coefficients) - 1,
        BLOCK=1024,
    )
    return beta, slope


def polynomial_settings(policy: Policy) -> dict[str, Any] | None:
    """Return the policy as `polynomial_beta` takes it, or None where it is not of that kind."""
    if type(policy) is Fixed and isinstance(policy.beta, int | float):
        policy = Polynomial((policy.beta,), threshold=-1.0, minimum=policy.beta)
    if type(policy) is not Polynomial:
        return None
    end = math.inf if policy.beyond == "evaluate" or policy.end is None else policy.end
    numbers = (*policy.coefficients, policy.threshold, policy.minimum, end)
    if not all(isinstance(number, int | float) for number in numbers):
        return None
    return {
        "threshold": float(policy.threshold),
        "minimum": float(policy.minimum),
        "end": float(end),
        "COEFFICIENTS": tuple(float(c) for c in policy.coefficients),
        "DEGREE": len(policy.coefficients) - 1,
    }
