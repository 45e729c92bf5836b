"""A polynomial policy inside a kernel, for kernels that hold a row only once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from sharpmax.policies import Fixed, Polynomial

if TYPE_CHECKING:
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
