"""How a policy chooses β from the statistics of attention: by one kernel where it can.

A polynomial of a few thousand entropies is twenty small operations, and so is what `LogLinear`
does; on a GPU, launching them takes longer than computing them.
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
from sharpmax.torch.operators import is_transformed
from sharpmax.torch.row_statistics.triton import HAS_TRITON, MOST_PLANES

if TYPE_CHECKING:
    from sharpmax.policy import Rows
    from sharpmax.statistics import RowStatistics

BAND = "low", "high", "drift"
LOG_BETA = "offset", "by_length", "below", "above", *BAND, "sink_log_power"
LOG_ODDS = "sink", "sink_by_length", "sink_below", "sink_above", *BAND, "sink_log_power"
"""The columns of the kernel's table for ln β, to which the power does nothing, and for the odds."""


def choose(policy: Policy, statistics: Rows) -> Tensor | float:
    """Return the β that the policy chooses, a number or one for every row, never 0 or below."""
    if isinstance(policy, Detached):
        beta = choose(policy.base, statistics.detached())
        return beta.detach() if isinstance(beta, Tensor) else beta
    if isinstance(policy, ConstantRows):
        return choose(policy.base, statistics.detached())
    if isinstance(policy, BetaAlone):
        return choose(policy.base, statistics)
    if (by_table := _log_linear(policy, statistics, None)) is not None:
        return by_table
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
    base, rows = policy, others
    while isinstance(base, ConstantRows):
        base, rows = base.base, rows.detached()._replace(lse=others.lse)  # by which the odds learn
    found = _log_linear(base, rows, logit)
    odds: Tensor = sink.sink_log_odds(policy, others, logit) if found is None else found
    return odds


def _log_linear(policy: Policy, rows: Rows, logit: Tensor | None) -> Tensor | None:
    """Return β of a `LogLinear` by head, or its sink's log-odds, by a kernel; None if it cannot."""
    numbers = _numbers(policy)
    if numbers is None or not _kernels_take(rows.length):
        return None
    from sharpmax.torch.sink_operators import log_linear

    length, band = rows.length, numbers["low"] is not None
    names = LOG_BETA if logit is None else LOG_ODDS
    columns = [numbers[name] if band or name not in BAND else 0.0 for name in names]
    heads = length.shape[1]
    if any(isinstance(x, Tensor) and x.shape != (heads,) for x in columns):
        return None
    table = torch.stack(
        [x.to(length) if isinstance(x, Tensor) else length.new_full((heads,), x) for x in columns],
        dim=-1,
    )
    entropy, lse = rows.entropy if band else None, None if logit is None else rows.lse
    settings = float(numbers["reference_length"]), float(numbers["most"])
    found: Tensor = log_linear(length, table, entropy, lse, logit, *settings)
    return found


def _kernels_take(length: Any) -> bool:
    """Tell whether the kernel takes rows of these lengths."""
    if not (HAS_TRITON and isinstance(length, Tensor) and length.device.type == "cuda"):
        return False
    fits = length.ndim == 3 and 0 < length.shape[0] * length.shape[1] <= MOST_PLANES
    return fits and length.shape[2] > 0 and length.dtype == torch.float32 and not is_transformed()


def _numbers(policy: Policy) -> dict[str, Any] | None:
    """Return the numbers of a `LogLinear` by head, or None if it is none that a kernel takes."""
    if not isinstance(policy, PerHead) or type(policy.base) is not LogLinear:
        return None
    numbers = policy.base.settings() | dict(policy.by_head)
    alike = numbers["reference_length"], numbers["most"]
    takes = all(isinstance(number, int | float) for number in alike) and all(
        value is None or isinstance(value, Tensor | int | float) for value in numbers.values()
    )
    return numbers if takes and numbers["most"] <= 1 / SMALLEST_BETA else None


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
