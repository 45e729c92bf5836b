"""What the core asks of an array, whichever framework it comes from.

NumPy, PyTorch and JAX share one vocabulary through array-api-compat. The few things that
vocabulary lacks (stopping a gradient, knowing whether a compiler will fuse) live here, and
nowhere else in the core.
"""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import array_api_compat

if TYPE_CHECKING:
    from collections.abc import Iterable

Array: TypeAlias = Any
"""An array of NumPy, PyTorch or JAX; there is no common supertype to name."""

CERTAIN = 80.0
"""The logarithm of odds beyond which there is no doubt in any precision, nor an overflow yet."""


def is_torch(value: object) -> bool:
    """Tell whether `value` is a PyTorch tensor.

    array-api-compat can tell too, but its cached answer makes torch.compile warn.
    """
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_numpy(value: object) -> bool:
    """Tell whether `value` is a NumPy array or scalar."""
    return not is_torch(value) and bool(array_api_compat.is_numpy_array(value))


def is_jax(value: object) -> bool:
    """Tell whether `value` is a JAX array, or one that stands for it while JAX traces."""
    return not is_torch(value) and bool(array_api_compat.is_jax_array(value))


def is_array(value: object) -> bool:
    """Tell whether `value` is an array of a framework that the core can work with."""
    return is_torch(value) or bool(array_api_compat.is_array_api_obj(value))


def namespace(array: Array) -> Any:
    """Return the array-API module that the array's functions come from."""
    if is_torch(array):
        from array_api_compat import torch

        return torch
    return array_api_compat.array_namespace(array)


def require_floating(array: Array, name: str) -> None:
    """Raise a TypeError that names the argument unless `array` holds real floating numbers."""
    if not is_array(array):
        raise TypeError(f"{name} must be a NumPy, PyTorch or JAX array, got {_kind(array)}")
    if hasattr(array, "filled"):
        raise TypeError(f"{name} must not be a masked array: give its data, and where=~mask")
    if not namespace(array).isdtype(array.dtype, "real floating"):
        raise TypeError(f"{name} must have a real floating dtype, got {array.dtype}")


def require_mask(array: Array, name: str, like: Array) -> Array:
    """Return a boolean mask in the shape of `like`, or raise an error that names the argument."""
    if not is_array(array) or is_torch(array) != is_torch(like) or hasattr(array, "filled"):
        raise TypeError(f"{name} must be a boolean array of the same framework, got {_kind(array)}")
    xp, shape = namespace(like), tuple(like.shape)
    if not xp.isdtype(array.dtype, "bool"):
        raise TypeError(f"{name} must be a boolean array, got dtype {array.dtype}")
    try:
        return xp.broadcast_to(array, shape)
    except (ValueError, RuntimeError):
        raise ValueError(
            f"{name} must broadcast to shape {shape}, got shape {tuple(array.shape)}"
        ) from None


def _kind(value: object) -> str:
    return type(value).__name__


def computing_dtype(array: Array) -> Any:
    """Return the dtype to compute in: the array's own, or float32 for half precisions."""
    xp = namespace(array)
    return xp.float32 if xp.finfo(array.dtype).bits < 32 else array.dtype


def array_like(values: tuple[float, ...] | Array, like: Array) -> Array:
    """Return `values` as an array of the framework, dtype and device of `like`."""
    xp = namespace(like)
    if not isinstance(values, tuple):
        return xp.astype(values, like.dtype, copy=False)
    device = like.device if is_torch(like) else array_api_compat.device(like)
    return xp.asarray(values, dtype=like.dtype, device=device)


def at_least(least: float, value: Array | float) -> Array | float:
    """Return the larger of a bound and a number, or every number of an array."""
    if isinstance(value, int | float):
        return max(value, least)
    return namespace(value).clip(value, min=least)


def first_true(mask: Array) -> Array:
    """Return where the first of every row is true, along the last axis."""
    if is_torch(mask):  # whose compiler does not see through the wrapped function
        return mask & (mask.cumsum(-1) == 1)
    xp = namespace(mask)
    return mask & (xp.cumulative_sum(xp.astype(mask, xp.int32), axis=-1) == 1)


def sigmoid(array: Array) -> Array:
    """Return 1/(1 + exp(−x)) without an overflow."""
    if is_torch(array):
        return array.sigmoid()
    xp = namespace(array)
    return 1 / (1 + xp.exp(-xp.clip(array, -CERTAIN, CERTAIN)))


def constant(array: Array) -> Array:
    """Return `array` as a constant that no gradient flows through."""
    if is_torch(array):
        return array.detach()
    if is_jax(array):
        from jax.lax import stop_gradient

        return stop_gradient(array)
    return array


def runs_eagerly_on_cpu(array: Array) -> bool:
    """Tell whether every operation on `array` makes its own trip through the CPU's memory.

    Then rows are best worked through in blocks that stay in the cache. A compiler (XLA,
    torch.compile) fuses better by itself, an accelerator wants one large launch, and a
    recorded gradient keeps all the blocks anyway.
    """
    if is_torch(array):
        import torch

        recorded = torch.is_grad_enabled() and array.requires_grad
        return array.device.type == "cpu" and not (recorded or torch.compiler.is_compiling())
    return is_numpy(array)


def hold_ceiling(block: Array) -> Array:
    """Return an array to hold while blocks of this size are worked through.

    It lies above room for a block's temporaries. As long as it is held, the C library keeps
    that room for the next block; otherwise it may return it to the system after each block
    and fetch it anew, page by page, which can double the time.
    """
    room = [namespace(block).empty_like(block) for _ in range(8)]
    return room[-1]


def move_axis(array: Array, source: int, destination: int) -> Array:
    """Return a view of `array` with one axis moved to another place."""
    order = [axis for axis in range(array.ndim) if axis != source % array.ndim]
    order.insert(destination % array.ndim, source % array.ndim)
    return namespace(array).permute_dims(array, tuple(order))


def concat_blocks(blocks: Iterable[Array], like: Array) -> Array:
    """Join blocks of rows into one array of the shape and dtype of `like`.

    Each block is written to its place as it comes, so that only one is alive at a time. Where
    a gradient is recorded, which would have to undo every write, they are joined at the end.
    """
    blocks = iter(blocks)
    first = next(blocks)
    if first.shape == like.shape:
        return first
    xp = namespace(first)
    if getattr(first, "requires_grad", False):
        return xp.concat([first, *blocks])
    # Made from a block, because a batch may be mapped over the blocks alone (vmap).
    joined = first.new_empty(like.shape) if is_torch(first) else xp.empty_like(like)
    start = 0
    for block in itertools.chain([first], blocks):
        joined[start : start + block.shape[0]] = block
        start += block.shape[0]
    return joined
