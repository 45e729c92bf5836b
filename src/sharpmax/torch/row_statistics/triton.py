"""Row statistics in one fused pass over the keys, by a Triton kernel of our own."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import torch

from sharpmax.statistics import RowStatistics
from sharpmax.torch.operators import row_statistics as operator

if TYPE_CHECKING:
    from sharpmax.torch.scores import Scores

HAS_TRITON = importlib.util.find_spec("triton") is not None
LARGEST_WIDTH = 256
MOST_PLANES = 65535
"""Heads over the batch: as many programs as a GPU launches along a grid's second axis."""


def refusal(scores: Scores) -> str | None:
    """Tell why the kernel cannot take the call, or None."""
    if not HAS_TRITON:
        return "need Triton, which is not installed"
    device = scores.query.device.type
    if device != "cuda" and not interpreted():
        return f"need a CUDA device, got {device}"
    if scores.query.dtype == torch.float64:
        return "have no kernel for torch.float64"
    if scores.query.shape[-1] > LARGEST_WIDTH:
        return f"take widths up to {LARGEST_WIDTH}, got {scores.query.shape[-1]}"
    if scores.query.numel() == 0:
        return "need at least one query"
    if (planes := scores.shape[0] * scores.shape[1]) > MOST_PLANES:
        return f"take up to {MOST_PLANES} heads over the batch, got {planes}"
    if not scores.scale > 0:
        return f"need a scale above 0, got {scores.scale}"
    return None


def row_statistics(scores: Scores) -> RowStatistics:
    """Return the statistics by the kernel."""
    maximum, lse, entropy = operator(*scores.arguments(), "triton")
    return RowStatistics(maximum, lse, entropy, scores.lengths())


def interpreted() -> bool:
    """Tell whether Triton's interpreter runs the kernels, on any device."""
    import triton

    return bool(triton.knobs.runtime.interpret)
