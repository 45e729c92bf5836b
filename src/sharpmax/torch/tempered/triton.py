"""Attention at a given β by a Triton kernel of our own, for logits and visibility of any kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharpmax.torch.row_statistics.triton import LARGEST_WIDTH
from sharpmax.torch.row_statistics.triton import refusal as statistics_refusal
from sharpmax.torch.tempered.fused import attend_by

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.torch.scores import Scores


def refusal(
    scores: Scores, value: Tensor, beta: Tensor | float, maximum: Tensor | None
) -> str | None:
    """Tell why the kernel cannot take the call, or None."""
    del beta, maximum
    if scores.query.device.type != "cuda":
        return f"need a CUDA device, got {scores.query.device.type}"
    if value.shape[-1] > LARGEST_WIDTH or value.shape[-1] == 0:
        return f"take values of widths from 1 to {LARGEST_WIDTH}, got {value.shape[-1]}"
    return statistics_refusal(scores)


def attend(scores: Scores, value: Tensor, beta: Tensor | float, maximum: Tensor | None) -> Tensor:
    """Attend by the kernel."""
    del maximum
    return attend_by("triton", scores, value, beta, None)
