"""How a policy chooses β from the statistics of attention: by one kernel where it can.

A polynomial of a few thousand entropies is twenty small operations; on a GPU, launching them
takes longer than computing them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sharpmax import sink
from sharpmax.arrays import at_least
from sharpmax.per_head import PerHead
from sharpmax.policies import BetaAlone, ConstantRows, Detached, LogLinear
from sharpmax.policy import Policy
from sharpmax.rows import SMALLEST_BETA
from sharpmax.torch.row_statistics.triton import HAS_TRITON

if TYPE_CHECKING:
    from sharpmax.policy import Rows
    from sharpmax.statistics import RowStatistics


def choose(policy: Policy, statistics: Rows) -> Tensor | float:
    """Return the β that the policy chooses, a number or one for every row, never 0 or below."""
    if isinstance(policy, Detached):
        beta = choose(policy.base, statistics.detached())
        return beta.detach() if isinstance(beta, Tensor) else beta
    if isinstance(policy, ConstantRows):
        return choose(policy.base, statistics.detached())
    if isinstance(policy, BetaAlone):
        return choose(policy.base, statistics)
    if (log_beta := _log_linear(policy, statistics, None)) is not None:
        return log_beta
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


def sink_log_odds(policy: Policy, others: RowStatistics, logit: Tensor) -> Tensor:
    """Return the log-odds of every row's sink: what `sharpmax.sink.sink_log_odds` does."""
    if isinstance(policy, Detached | ConstantRows):
        kept = others.detached()._replace(lse=others.lse)  # the odds keep their gradient
        return sink_log_odds(policy.base, kept, logit)
    found = _log_linear(policy, others, logit)
    odds: Tensor = sink.sink_log_odds(policy, others, logit) if found is None else found
    return odds


def _log_linear(policy: Policy, rows: Rows, logit: Tensor | None) -> Tensor | None:
    """Return β of a `LogLinear`, or its sink's log-odds, by a kernel; None if it cannot."""
    length = rows.length
    if not (HAS_TRITON and isinstance(length, Tensor) and length.device.type == "cuda"):
        return None
    numbers = _numbers(policy)
    if numbers is None or length.ndim != 3 or length.dtype != torch.float32:
        return None
    from sharpmax.torch.kernels.log_linear import COLUMNS
    from sharpmax.torch.sink_operators import log_linear

    heads, band = length.shape[1], numbers["low"] is not None
    names = SINK if logit is not None else BETA
    columns = [numbers[name] if band or name not in BAND else 0.0 for name in names]
    if any(isinstance(x, Tensor) and x.shape != (heads,) for x in columns):
        return None
    assert len(columns) == len(COLUMNS)
    table = torch.stack(
        [x.to(length) if isinstance(x, Tensor) else length.new_full((heads,), x) for x in columns],
        dim=-1,
    )
    entropy, lse = rows.entropy if band else None, None if logit is None else rows.lse
    settings = float(numbers["reference_length"]), float(numbers["most"])
    found: Tensor = log_linear(length, table, entropy, lse, logit, *settings)
    return found


BAND = "low", "high", "drift"
BETA = "offset", "by_length", "below", "above", *BAND, "sink_log_power"
SINK = "sink", "sink_by_length", "sink_below", "sink_above", *BAND, "sink_log_power"
"""The columns of the kernel's table for β, which has no power, and for the sink's odds."""


def _numbers(policy: Policy) -> dict[str, Any] | None:
    """Return the numbers of a `LogLinear`, by head or not, or None if it is none."""
    base = policy.base if isinstance(policy, PerHead) else policy
    if type(base) is not LogLinear:
        return None
    numbers = base.settings() | (dict(policy.by_head) if isinstance(policy, PerHead) else {})
    alike = "reference_length", "most"
    takes = all(isinstance(numbers[name], int | float) for name in alike) and all(
        value is None or isinstance(value, Tensor | int | float) for value in numbers.values()
    )
    return numbers if takes else None


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
