"""Row statistics of attention: every row's entropy without ever holding the matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from sharpmax.jax import chunked, cudnn, pallas, reference, sharded
from sharpmax.jax.scores import Scores
from sharpmax.statistics import RowStatistics

if TYPE_CHECKING:
    from jax import Array

    from sharpmax.policy import Policy

IMPLEMENTATIONS = {
    "reference": reference,
    "chunked": chunked,
    "cudnn": cudnn,
    "pallas": pallas,
}


def row_statistics(
    query: Any,
    key: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | Array | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    axis_name: str | None = None,
) -> RowStatistics:
    """Return the statistics of every row of attention logits, in memory linear in the length.

    Arguments are those of `sharpmax.jax.attention`, but for value and policy. The statistics have
    shape (batch, heads, queries), in float32 (float64 for float64 queries), and are differentiable.
    Their `max` is unknown, NaN, from "cudnn", and from "pallas" where they are differentiated.
    """
    scores = Scores.of(
        query,
        key,
        bias,
        mask,
        scale=scale,
        is_causal=is_causal,
        query_seq_lengths=query_seq_lengths,
        key_value_seq_lengths=key_value_seq_lengths,
        local_window_size=local_window_size,
    )
    if axis_name is not None:
        require_chunked(implementation)
        found = sharded.row_statistics(scores, axis_name)
    else:
        found = implementation_of(implementation, scores).row_statistics(scores)
    return found if jnp.ndim(query) == 4 else RowStatistics(*(array[0] for array in found))


def implementation_of(
    name: str | None,
    scores: Scores,
    value: Array | None = None,
    policy: Policy | None = None,
) -> Any:
    """Return the implementation of a name; None chooses the fastest that takes the call.

    Raises:
        ValueError: If there is none of that name.
        NotImplementedError: If it cannot take the call; the message says why.
    """
    if name is not None and (not isinstance(name, str) or name not in IMPLEMENTATIONS):
        known = ", ".join(IMPLEMENTATIONS)
        raise ValueError(f"implementation must be one of {known} or None, got {name!r}")
    if name is None:
        fast = [i for i in (pallas, cudnn) if i.refusal(scores, value, policy) is None]
        return fast[0] if fast else chunked
    found: Any = IMPLEMENTATIONS[name]
    reason = found.refusal(scores, value, policy) if hasattr(found, "refusal") else None
    if reason is not None:
        raise NotImplementedError(f"implementation {name!r} {reason}")
    return found


def require_chunked(implementation: str | None) -> None:
    """Raise an error unless this is the implementation that takes keys which are sharded."""
    if implementation not in (None, "chunked"):
        raise ValueError(
            f"implementation must be chunked where keys are sharded, got {implementation!r}"
        )
