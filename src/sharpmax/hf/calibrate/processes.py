"""One process, or several that accelerate has launched and that share the steps out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Processes:
    """Who works on a calibration.

    Attributes:
        rank: Of this process.
        count: Of all of them.
    """

    rank: int = 0
    count: int = 1

    @classmethod
    def here(cls) -> Processes:
        """Return those that torch.distributed knows, which accelerate has set up."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return cls()
        return cls(torch.distributed.get_rank(), torch.distributed.get_world_size())

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes and talks."""
        return self.rank == 0

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all processes."""
        if self.count > 1:
            torch.distributed.all_reduce(tensor)

    def first(self, value: Any) -> Any:
        """Return what the first process has found, in all of them."""
        if self.count == 1:
            return value
        values = [value]
        torch.distributed.broadcast_object_list(values)
        return values[0]
