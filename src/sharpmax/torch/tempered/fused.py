"""The call of a fused kernel that `hopper` and `triton` share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from sharpmax.torch.operators import tempered

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.torch.scores import Scores


def attend_by(
    kernels: str, scores: Scores, value: Tensor, beta: Tensor | float, maximum: Tensor | None
) -> Tensor:
    """Attend by the kernels of this name."""
    if isinstance(beta, int | float):
        beta = torch.full(scores.shape, beta, dtype=torch.float32, device=value.device)
    beta = scores.bounded(beta.float()).contiguous()
    scores = replace(
        scores,
        query=_padded(scores.query),
        key=_padded(scores.key),
        is_causal=scores.is_causal and not scores.sees_all,
    )
    query, key, *settings = scores.arguments()
    out: Tensor
    out, _ = tempered(query, key, _padded(value), beta, maximum, *settings, kernels)
    return out[..., : value.shape[-1]]


def _padded(tensor: Tensor) -> Tensor:
    """Return the tensor with zeros up to a width of which 16 bytes are a part."""
    missing = -tensor.shape[-1] % 8
    return pad(tensor, (0, missing)) if missing else tensor
