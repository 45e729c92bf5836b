"""Row statistics in one fused pass over the keys, by a Triton kernel of our own.

The kernels themselves are in `kernel/`, which needs Triton; this module decides whether to take a
call and connects the kernel to autograd.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import torch

from sharpmax.statistics import RowStatistics

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.torch.scores import Scores

HAS_TRITON = importlib.util.find_spec("triton") is not None
LARGEST_WIDTH = 256


def refusal(scores: Scores) -> str | None:
    """Tell why the kernel cannot take the call, or None."""
    if not HAS_TRITON:
        return "need Triton, which is not installed"
    device = scores.query.device.type
    if device != "cuda" and not _interpreted():
        return f"need a CUDA device, got {device}"
    if scores.query.dtype == torch.float64:
        return "have no kernel for torch.float64"
    if scores.query.shape[-1] > LARGEST_WIDTH:
        return f"take widths up to {LARGEST_WIDTH}, got {scores.query.shape[-1]}"
    if scores.query.numel() == 0:
        return "need at least one query"
    if not scores.scale > 0:
        return f"need a scale above 0, got {scores.scale}"
    return None


def row_statistics(scores: Scores) -> RowStatistics:
    """Return the statistics by the kernel."""
    maximum, lse, entropy = _Kernel.apply(  # type: ignore[no-untyped-call]
        scores.query, scores.key, scores
    )
    return RowStatistics(maximum, lse, entropy, scores.lengths())


def _interpreted() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)


class _Kernel(torch.autograd.Function):
    """The maximum, the log-sum-exp and the entropy of every row."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, scores: Scores
    ) -> tuple[Tensor, Tensor, Tensor]:
        from sharpmax.torch.row_statistics import kernel

        maximum, lse, entropy = kernel.forward(scores)
        ctx.save_for_backward(query, key, lse, entropy)
        ctx.scores = scores
        ctx.mark_non_differentiable(maximum)
        ctx.set_materialize_grads(False)
        return maximum, lse, entropy

    @staticmethod
    def backward(
        ctx: Any, _: None, grad_lse: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor, Tensor, None]:
        from sharpmax.torch.row_statistics import kernel

        _query, _key, lse, entropy = ctx.saved_tensors
        zeros = torch.zeros_like(lse)
        grad_query, grad_key = kernel.backward(
            ctx.scores,
            lse,
            entropy,
            zeros if grad_lse is None else grad_lse,
            zeros if grad_entropy is None else grad_entropy,
        )
        return grad_query, grad_key, None
