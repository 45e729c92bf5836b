"""Attention at a given β per row: the second half of the corridor.

Each implementation is a module with two functions: `refusal` tells why it cannot take a call,
or None, and `attend` takes it. The first that can, does: `hopper` and `triton` are kernels of our
own, `products` trains in bfloat16 on CPUs, `sdpa` is PyTorch's on β·q, and `chunked` takes
everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from sharpmax.torch.tempered import chunked, hopper, products, sdpa, triton

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.torch.scores import Scores


class Implementation(Protocol):
    """What a module must offer to be one of the implementations."""

    def refusal(
        self, scores: Scores, value: Tensor, beta: Tensor | float, maximum: Tensor | None
    ) -> str | None:
        """Tell why it cannot take the call, or None."""

    def attend(
        self, scores: Scores, value: Tensor, beta: Tensor | float, maximum: Tensor | None
    ) -> Tensor:
        """Return softmax(β·logits)·value."""


FASTEST_FIRST: tuple[Implementation, ...] = (hopper, products, sdpa, triton, chunked)


def attend(
    scores: Scores, value: Tensor, beta: Tensor | float, maximum: Tensor | None = None
) -> Tensor:
    """Return softmax(β·logits)·value.

    Args:
        scores: How the logits are made.
        value: Of shape (batch, key heads, keys, value width).
        beta: A number above 0, or an array that broadcasts to the rows.
        maximum: The largest logit of every row, where known: it spares a kernel to find it.
    """
    if not isinstance(beta, int | float):
        beta = torch.as_tensor(beta, device=value.device)
        if not _broadcasts(beta.shape, scores.shape):
            raise ValueError(
                f"policy must choose a β that broadcasts to {scores.shape}, "
                f"got one of shape {tuple(beta.shape)}"
            )
        beta = beta.expand(scores.shape)
    for implementation in FASTEST_FIRST:
        if implementation.refusal(scores, value, beta, maximum) is None:
            return implementation.attend(scores, value, beta, maximum)
    raise AssertionError("chunked takes every call")


def _broadcasts(shape: torch.Size, to: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, wanted) for size, wanted in pairs)
