"""How a policy chooses β from the statistics of attention: by one kernel where it can.

A polynomial of a few thousand entropies is twenty small operations; on a GPU, launching them
takes longer than computing them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sharpmax.arrays import at_least
from sharpmax.policies import Detached
from sharpmax.policy import Policy
from sharpmax.rows import SMALLEST_BETA
from sharpmax.torch.row_statistics.triton import HAS_TRITON

if TYPE_CHECKING:
    from sharpmax.policy import Rows


def choose(policy: Policy, statistics: Rows) -> Tensor | float:
    """Return the β that the policy chooses, a number or one for every row, never 0 or below."""
    if isinstance(policy, Detached):
        beta = choose(policy.base, statistics.detached())
        return beta.detach() if isinstance(beta, Tensor) else beta
    reads_entropy = policy.reads == {"entropy"}
    if HAS_TRITON and reads_entropy and statistics.entropy.device.type == "cuda":
        from sharpmax.torch.kernels.polynomial import polynomial_settings
        from sharpmax.torch.operators import polynomial

        if settings := polynomial_settings(policy):
            beta, _ = polynomial(
                statistics.entropy,
                list(settings["COEFFICIENTS"]),
                settings["threshold"],
                max(settings["minimum"], SMALLEST_BETA),
                settings["end"],
            )
            by_kernel: Tensor = beta
            return by_kernel
    chosen: Tensor | float = at_least(SMALLEST_BETA, policy(statistics))
    return chosen


def in_training(value: Any) -> bool:
    """Tell whether a policy, or a setting of one, holds a tensor that wants a gradient."""
    if not torch.is_grad_enabled():
        return False
    if isinstance(value, Tensor):
        return value.requires_grad
    if isinstance(value, torch.nn.Module):
        return any(map(in_training, value.parameters()))
    if isinstance(value, Policy):
        return in_training(value.settings())
    if isinstance(value, dict):
        return any(map(in_training, value.values()))
    return isinstance(value, tuple | list) and any(map(in_training, value))
