"""Work whose intermediate results are made again in the backward pass instead of being kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch.utils.checkpoint import checkpoint

A = TypeVar("A")
T = TypeVar("T")


def checkpointed(function: Callable[[A], T], argument: A) -> T:
    """Call the function; while gradients are recorded, keep only what went in and came out."""
    if not torch.is_grad_enabled():
        return function(argument)
    result: T = checkpoint(function, argument, use_reentrant=False)
    return result
