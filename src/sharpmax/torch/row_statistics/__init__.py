"""Row statistics of attention: every row's entropy without ever holding the matrix.

Each implementation is a module with two functions: `refusal` tells why it cannot take a call,
or None, and `row_statistics` takes it. `reference` defines; the others are checked against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sharpmax.torch.row_statistics import chunked, flash, reference, triton
from sharpmax.torch.scores import Scores

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.statistics import RowStatistics


class Implementation(Protocol):
    """What a module must offer to be one of the implementations."""

    def refusal(self, scores: Scores) -> str | None:
        """Tell why it cannot take the call, or None."""

    def row_statistics(self, scores: Scores) -> RowStatistics:
        """Return the statistics of every row."""


IMPLEMENTATIONS: dict[str, Implementation] = {
    "triton": triton,
    "flash": flash,
    "chunked": chunked,
    "reference": reference,
}

FASTEST_FIRST = {"cuda": ("triton", "flash", "chunked")}
"""By device; elsewhere flash and chunked. The last takes every call."""


def row_statistics(
    query: Tensor,
    key: Tensor,
    *,
    is_causal: bool = False,
    mask: Tensor | None = None,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    implementation: str | None = None,
) -> RowStatistics:
    """Return the statistics of every row of attention logits, in memory linear in the length.

    Arguments are those of `sharpmax.torch.attention`. The statistics have shape (batch, heads,
    queries), in float32 (float64 for float64 queries), and are differentiable.

    Args:
        implementation: "triton" (one fused pass, CUDA), "flash" (from a flash kernel's
            log-sum-exp; it cannot tell the rows' maximum, which is NaN), "chunked" (a few
            queries at a time, any device and any logits) or "reference" (all logits at once).
            None chooses the fastest that can take the call; a named one takes it or raises
            NotImplementedError with its reason.
    """
    scores = Scores.of(
        query,
        key,
        is_causal=is_causal,
        mask=mask,
        window=window,
        softcap=softcap,
        scale=scale,
    )
    return statistics_of(scores, implementation)


def statistics_of(scores: Scores, implementation: str | None = None) -> RowStatistics:
    """Return the row statistics of checked arguments."""
    if implementation is None:
        names = FASTEST_FIRST.get(scores.query.device.type, ("flash", "chunked"))
        modules = (IMPLEMENTATIONS[name] for name in names)
        fastest = next(module for module in modules if module.refusal(scores) is None)
        return fastest.row_statistics(scores)
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"implementation must be one of {', '.join(IMPLEMENTATIONS)} or None, "
            f"got {implementation!r}"
        )
    module = IMPLEMENTATIONS[implementation]
    if reason := module.refusal(scores):
        raise NotImplementedError(f"the {implementation} row statistics {reason}")
    return module.row_statistics(scores)
