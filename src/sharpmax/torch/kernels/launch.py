"""Launching a Triton kernel in a fraction of the time that Triton itself takes for it.

Before every launch Triton works out anew which of its compiled variants fits the arguments. That
takes the host longer than one query takes the device, and a model that writes waits for it in
every layer. A variant depends on nothing but the tensors' dtypes and alignments, the numbers and
the settings: for equal ones, the variant of the last time is launched.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_KEPT = 1024
"""Combinations of arguments to remember: a model that writes has a new one at every token."""
ALIGNMENT = 16
"""The bytes by which Triton tells aligned pointers from others."""


class Launcher:
    """A kernel of Triton's, or Gluon's, that remembers what it was launched with."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._is_compiled = isinstance(kernel, triton.JITFunction)  # and not interpreted
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(
        self,
        grid: tuple[int, int],
        tensors: Sequence[Any],
        numbers: Sequence[int | float],
        **settings: Any,
    ) -> None:
        """Launch it on the current device, where the tensors must be.

        Args:
            grid: How many programs there are in either direction.
            tensors: The kernel's first parameters: tensors, or descriptors of them.
            numbers: The parameters after these.
            settings: Its constants, and Triton's options.
        """
        if not self._is_compiled:
            self.kernel[grid](*tensors, *numbers, **settings)
            return
        device = torch.cuda.current_device()
        kinds = (*map(_kind, tensors), *map(type, numbers))
        key = (device, *kinds, *numbers, *settings.values())
        compiled = self._compiled.get(key)
        if compiled is None:
            if len(self._compiled) >= MOST_KEPT:
                self._compiled.clear()
            self._compiled[key] = self.kernel[grid](*tensors, *numbers, **settings)
            return
        constants = [settings[name] for name in self._constants]
        compiled[(*grid, 1)](*tensors, *numbers, *constants)

    @functools.cached_property
    def _constants(self) -> list[str]:
        return [parameter.name for parameter in self.kernel.params if parameter.is_constexpr]


def _kind(tensor: Any) -> tuple[Any, ...]:
    """Return what a variant depends on; a descriptor's tensor is always aligned."""
    if isinstance(tensor, Tensor):
        return tensor.dtype, tensor.data_ptr() % ALIGNMENT == 0
    return tensor.base.dtype, *tensor.block_shape


@functools.cache
def processors(device: torch.device) -> int:
    """Return how many multiprocessors a device has."""
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
