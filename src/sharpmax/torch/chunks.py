"""Work done a few queries at a time, whose intermediate results are never kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sharpmax.arrays import runs_eagerly_on_cpu


def by_chunks(
    function: Callable[[slice], tuple[Tensor, ...]], chunks: Iterable[slice], queries: int
) -> tuple[Tensor, ...]:
    """Return what the function gives for all chunks of queries, joined along their axis, the third.

    While gradients are recorded, only what went in and came out of a chunk is kept, and the rest
    made again in the backward pass. Otherwise a chunk's results go to their place at once: many
    small ones, kept until the end, pin the memory that lay between them.
    """
    first, *rest = chunks
    part = function(first)
    if not all(map(runs_eagerly_on_cpu, part)) or in_a_transform():
        parts = [_checkpointed(function, chunk) for chunk in (first, *rest)]
        return tuple(torch.cat(part, dim=2) for part in zip(*parts, strict=True))
    joined = tuple(x.new_empty((*x.shape[:2], queries, *x.shape[3:])) for x in part)
    for chunk in (first, *rest):
        part = part if chunk is first else function(chunk)
        for whole, x in zip(joined, part, strict=True):
            whole[:, :, chunk] = x
    return joined


def _checkpointed(
    function: Callable[[slice], tuple[Tensor, ...]], chunk: slice
) -> tuple[Tensor, ...]:
    if not torch.is_grad_enabled():
        return function(chunk)
    result: tuple[Tensor, ...] = checkpoint(function, chunk, use_reentrant=False)
    return result


def in_a_transform() -> bool:
    """Tell whether `torch.func` looks on, which has to see ordinary operations."""
    return torch._C._functorch.maybe_current_level() is not None
