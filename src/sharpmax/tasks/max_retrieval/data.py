"""Sets of items, of which the one of highest priority is to be named.

An item is its priority ρ, uniform in (0, 1), beside the one-hot of its class; the query is one
random number, which tells nothing; the answer is the class of the item of the largest ρ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Generator, Tensor

CLASSES = 10
FEATURES = 1 + CLASSES


@dataclass(frozen=True)
class Sets:
    """Some sets of one size; the leading axes of every tensor are the sets'.

    Attributes:
        items: Of shape (…, size, features).
        query: Of shape (…, 1).
        largest: The place of the item of the largest priority, of shape (…).
        target: Its class, likewise.
    """

    items: Tensor
    query: Tensor
    largest: Tensor
    target: Tensor


def draw(shape: tuple[int, ...], size: int, generator: Generator) -> Sets:
    """Return random sets of `size` items, as many as `shape` says, on the generator's device."""
    device = generator.device
    priority = torch.rand((*shape, size), generator=generator, device=device)
    kind = torch.randint(CLASSES, (*shape, size), generator=generator, device=device)
    query = torch.rand((*shape, 1), generator=generator, device=device)
    largest = priority.argmax(-1)
    target = kind.gather(-1, largest[..., None])[..., 0]
    one_hot = kind[..., None] == torch.arange(CLASSES, device=device)
    items = torch.cat((priority[..., None], one_hot.to(priority)), -1)
    return Sets(items, query, largest, target)
