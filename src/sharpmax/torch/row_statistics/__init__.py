"""Row statistics of attention: every row's entropy without ever holding the matrix.

Each implementation is a module with two functions: `refusal` tells why it cannot take a call,
or None, and `row_statistics` takes it. `reference` defines; the others are checked against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from sharpmax.torch.autocast import as_under_autocast
from sharpmax.torch.row_statistics import chunked, flash, hopper, products, reference, triton
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
    "hopper": hopper,
    "triton": triton,
    "products": products,
    "flash": flash,
    "chunked": chunked,
    "reference": reference,
}

FASTEST_FIRST = {"cuda": ("hopper", "triton", "flash", "chunked")}
"""By device; the last takes every call."""
ELSEWHERE = ("products", "flash", "chunked")


@as_under_autocast
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
    queries), in float32 (float64 for float64 queries), and are differentiable; the maximum is so
    by "chunked" and "reference" alone.

    Args:
        implementation: "hopper" (one fused pass, Hopper GPUs, plain logits), "triton" (one
            fused pass, CUDA), "products" (large products, bfloat16 in training on CPUs that
            multiply it fast), "flash" (from a flash kernel's log-sum-exp; it cannot tell the
            rows' maximum, which is NaN), "chunked" (a few queries at a time, any device and any
            logits) or "reference" (all logits at once). None chooses the fastest that can take
            the call; a named one takes it or raises NotImplementedError with its reason.
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
    name = chosen(scores, implementation)
    return IMPLEMENTATIONS[name].row_statistics(scores)


def chosen(
    scores: Scores, implementation: str | None = None, reads: frozenset[str] = frozenset()
) -> str:
    """Return the implementation asked for, or the fastest that tells what a policy reads."""
    require_implementation(implementation)
    if implementation is not None:
        if reason := _refusal(implementation, scores, reads):
            raise NotImplementedError(f"the {implementation} row statistics {reason}")
        return implementation
    names = FASTEST_FIRST.get(scores.query.device.type, ELSEWHERE)
    return next(name for name in names if _refusal(name, scores, reads) is None)


def require_implementation(name: str | None) -> None:
    """Raise a ValueError unless `name` is one of the implementations, or None."""
    if name is not None and name not in IMPLEMENTATIONS:
        known = ", ".join(IMPLEMENTATIONS)
        raise ValueError(f"implementation must be one of {known} or None, got {name!r}")


def _refusal(name: str, scores: Scores, reads: frozenset[str]) -> str | None:
    if "max" in reads:
        tensors = scores.query, scores.key
        in_training = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        if name == "flash":
            return "cannot tell the rows' maximum, which the policy reads"
        if name in ("hopper", "triton", "products") and in_training:
            return "have no gradient by the rows' maximum, which the policy reads"
    return IMPLEMENTATIONS[name].refusal(scores)
