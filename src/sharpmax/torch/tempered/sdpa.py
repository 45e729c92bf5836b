"""Attention at a given β by PyTorch's fastest kernel: β·(q·k) = (β·q)·k."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from sharpmax.torch.scores import Scores

FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]

ORDER = [backend.value for backend in (*FASTEST_FIRST, SDPBackend.OVERRIDEABLE)]


def refusal(
    scores: Scores, value: Tensor, beta: Tensor | float, maximum: Tensor | None
) -> str | None:
    """Tell why PyTorch's kernels cannot take the call, or None."""
    del beta, maximum
    if scores.softcap is not None:
        return "cannot scale logits behind a softcap"
    if not (scores.sees_all or scores.is_square_causal or _takes_mask(scores, value)):
        return (
            "can only see all keys, as many as there are queries causally, or on a CPU those of a "
            "mask, where values are as wide as keys"
        )
    if not scores.scale > 0:
        return f"need a scale above 0, got {scores.scale}"
    return None


def attend(scores: Scores, value: Tensor, beta: Tensor | float, maximum: Tensor | None) -> Tensor:
    """Attend with β multiplied into the queries."""
    del maximum
    query, scale = scores.tempered(beta)
    with _fastest_first(query.device):
        out: Tensor = scaled_dot_product_attention(
            query,
            scores.key,
            value,
            attn_mask=scores.whole_mask,
            is_causal=scores.is_square_causal,
            scale=scale,
            enable_gqa=bool(scores.query.shape[1] != scores.key.shape[1]),
        )
    return out


def _takes_mask(scores: Scores, value: Tensor) -> bool:
    """Tell whether a mask alone says what queries see, and PyTorch has a kernel for it.

    A GPU's kernels for masks are our own. The CPU's takes values as wide as keys; for others,
    PyTorch would write all weights down.
    """
    is_alone = scores.mask is not None and replace(scores, mask=None).sees_all
    is_as_wide = value.shape[-1] == scores.key.shape[-1]
    return is_alone and is_as_wide and scores.query.device.type == "cpu"


@contextmanager
def _fastest_first(device: torch.device) -> Iterator[None]:
    """Let PyTorch try its kernels in this order.

    `sdpa_kernel` does it too, and takes longer than to launch a kernel.
    """
    if device.type != "cuda":
        yield
    elif torch.compiler.is_compiling():
        with sdpa_kernel(FASTEST_FIRST, set_priority=True):
            yield
    else:
        before = torch._C._get_sdp_priority_order()
        torch._C._set_sdp_priority_order(ORDER)
        try:
            yield
        finally:
            torch._C._set_sdp_priority_order(before)
