"""Under torch.autocast: what PyTorch's own attention does there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

Given = ParamSpec("Given")
Found = TypeVar("Found")


def as_under_autocast(call: Callable[Given, Found]) -> Callable[Given, Found]:
    """Let a call whose first argument is a tensor get all tensors in the dtype of autocast.

    It then computes without it: sums in float32 are to stay that.
    """

    @functools.wraps(call)
    def casting(*args: Given.args, **settings: Given.kwargs) -> Found:
        first = args[0] if args else settings.get("query")
        device = first.device.type if isinstance(first, Tensor) else "cpu"
        if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
            return call(*args, **settings)
        dtype = torch.get_autocast_dtype(device)

        def cast(given: Any) -> Any:
            wanted = isinstance(given, Tensor) and given.is_floating_point()
            return given.to(dtype) if wanted and given.dtype != torch.float64 else given

        with torch.autocast(device, enabled=False):
            return call(*map(cast, args), **{name: cast(value) for name, value in settings.items()})

    return casting
