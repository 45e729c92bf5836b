"""Attention at a given β by a kernel for Hopper GPUs, where the statistics told the maximum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention

from sharpmax.torch.row_statistics.hopper import LARGEST_WIDTH
from sharpmax.torch.row_statistics.hopper import refusal as statistics_refusal
from sharpmax.torch.tempered.fused import attend_by

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.torch.scores import Scores


def refusal(
    scores: Scores, value: Tensor, beta: Tensor | float, maximum: Tensor | None
) -> str | None:
    """Tell why the kernel cannot take the call, or None."""
    if maximum is None:
        return "need the maximum of every row"
    if reason := statistics_refusal(scores):
        return reason
    width = value.shape[-1]
    if width > LARGEST_WIDTH or width % 8 or width == 0:
        return f"take values of widths up to {LARGEST_WIDTH}, a multiple of 8, got {width}"
    tensors = scores.query, scores.key, value, beta
    in_training = torch.is_grad_enabled() and any(
        isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in tensors
    )
    if in_training and not (scores.sees_all or scores.is_square_causal):
        return "have no backward pass for a causal mask with more keys than queries"
    # The question to cuDNN cannot be traced.
    if in_training and (torch.compiler.is_compiling() or not _cudnn_takes(scores, value)):
        return "have no backward pass where cuDNN has none, and none under torch.compile"
    return None


def attend(scores: Scores, value: Tensor, beta: Tensor | float, maximum: Tensor | None) -> Tensor:
    """Attend by the kernel."""
    return attend_by("hopper", scores, value, beta, maximum)


def _cudnn_takes(scores: Scores, value: Tensor) -> bool:
    is_grouped = scores.query.shape[1] != scores.key.shape[1]
    is_causal = scores.is_causal and not scores.sees_all
    call = SDPAParams(scores.query, scores.key, value, None, 0.0, is_causal, is_grouped)
    return bool(can_use_cudnn_attention(call))
