"""Row statistics by a kernel for Hopper GPUs, whose copies, products and exponentials overlap."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

import torch

from sharpmax.statistics import RowStatistics
from sharpmax.torch.operators import row_statistics as operator
from sharpmax.torch.row_statistics.triton import HAS_TRITON, MOST_PLANES

if TYPE_CHECKING:
    from sharpmax.torch.scores import Scores

LARGEST_WIDTH = 128
SMALLEST_SCALE = 1e-6
"""Divided by less, a masked logit would not be finite."""


def refusal(scores: Scores) -> str | None:
    """Tell why the kernel cannot take the call, or None."""
    if scores.query.device.type != "cuda" or not _has_kernels(scores.query.device):
        return f"need a Hopper GPU and Triton with Gluon, got {scores.query.device}"
    if scores.softcap is not None or scores.window is not None or scores.mask is not None:
        return "take neither a softcap nor a window nor a mask"
    if scores.query.dtype not in (torch.float16, torch.bfloat16):
        return f"take float16 and bfloat16, got {scores.query.dtype}"
    width = scores.query.shape[-1]
    if width > LARGEST_WIDTH or width % 8:
        return f"take widths up to {LARGEST_WIDTH} that are a multiple of 8, got {width}"
    if scores.query.numel() == 0:
        return "need at least one query"
    if (planes := scores.shape[0] * scores.shape[1]) > MOST_PLANES:
        return f"take up to {MOST_PLANES} heads over the batch, got {planes}"
    if not scores.scale >= SMALLEST_SCALE:
        return f"need a scale of at least {SMALLEST_SCALE}, got {scores.scale}"
    return None


def row_statistics(scores: Scores) -> RowStatistics:
    """Return the statistics by the kernel."""
    maximum, lse, entropy = operator(*scores.arguments(), "hopper")
    return RowStatistics(maximum, lse, entropy, scores.lengths())


def _has_kernels(device: torch.device) -> bool:
    is_hopper = _is_hopper if torch.compiler.is_compiling() else _is_hopper_kept
    return HAS_TRITON and is_hopper(device) and _has_gluon()


def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] == 9


_is_hopper_kept = functools.cache(_is_hopper)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_gluon() -> bool:
    return _imports_kernels()


@functools.cache
def _imports_kernels() -> bool:
    try:
        importlib.import_module("sharpmax.torch.kernels.hopper.stream")
    except ImportError:
        return False
    return True
