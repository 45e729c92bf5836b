"""What a row's first key, its sink, has of the weight where a policy sets it apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharpmax.arrays import namespace, sigmoid

if TYPE_CHECKING:
    from sharpmax.arrays import Array
    from sharpmax.policy import Policy, Rows

FAR = 1e30
"""In place of infinity: differences of it are numbers."""
FARTHER = 1e34
"""Where a sink lies that is not there: below others that are not there."""


def sink_log_odds(policy: Policy, others: Rows, logit: Array) -> Array:
    """Return the logarithm of the odds of every row's sink against its other keys.

    Args:
        policy: Sets the sink apart.
        others: The rows without it; their log-sum-exp is −inf where nothing else is visible.
        logit: The sink's; −inf where there is none.
    """
    xp = namespace(logit)
    plain = xp.clip(logit, min=-FARTHER) - xp.clip(others.lse, min=-FAR)
    return policy.sink_log_odds(others, plain)


def sink_shares(policy: Policy, others: Rows, logit: Array) -> tuple[Array, Array]:
    """Return the share of every row's sink, and what it leaves: either is exact, however small.

    The arguments are those of `sink_log_odds`.
    """
    log_odds = sink_log_odds(policy, others, logit)
    return sigmoid(log_odds), sigmoid(-log_odds)
