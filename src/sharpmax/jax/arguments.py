"""What attention in JAX takes: each argument as it is worked with, or an error that names it."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sharpmax.policy import Policy, require_policy

DTYPES = "float64", "float32", "bfloat16", "float16"


def array_of(name: str, given: Any) -> Array:
    """Return an argument as an array."""
    try:
        return jnp.asarray(given)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be an array, got {type(given).__name__}") from None


def sequences_of(name: str, given: Any) -> Array:
    """Return query, key or value with four axes; without a batch it becomes one of 1."""
    array = array_of(name, given)
    if array.ndim not in (3, 4):
        raise ValueError(
            f"{name} must have shape (batch, length, heads, width) or (length, heads, width), "
            f"got {array.shape}"
        )
    if array.dtype.name not in DTYPES:
        raise TypeError(f"{name} must be one of {', '.join(DTYPES)}, got {array.dtype}")
    return array if array.ndim == 4 else array[None]


def require_like(name: str, array: Array, query: Array) -> None:
    """Raise an error that names the argument unless it has the query's dtype and batch."""
    if array.dtype != query.dtype:
        raise ValueError(f"{name} must have the dtype of query, {query.dtype}, got {array.dtype}")
    if array.shape[0] != query.shape[0]:
        raise ValueError(
            f"{name} must have the batch size of query, {query.shape[0]}, got {array.shape[0]}"
        )


def require_fitting(query: Array, key: Array) -> None:
    """Raise an error unless the query can be multiplied with the key, head by head."""
    require_like("key", key, query)
    if key.shape[3] != query.shape[3]:
        raise ValueError(f"key must have the width of query, {query.shape[3]}, got {key.shape[3]}")
    if query.shape[3] == 0:
        raise ValueError("query must have a width of at least 1, got 0")
    if key.shape[2] == 0 or query.shape[2] % key.shape[2]:
        raise ValueError(
            f"query must have a multiple of the {key.shape[2]} heads of key, got {query.shape[2]}"
        )
    if key.shape[1] == 0:
        raise ValueError("key must hold at least one key, got none")


def bias_of(bias: Any, full: tuple[int, ...]) -> Array | None:
    """Return the bias with four axes."""
    if bias is None:
        return None
    found = _broadcastable("bias", bias, full)
    if found.dtype.name not in DTYPES and not jnp.issubdtype(found.dtype, jnp.integer):
        raise TypeError(
            f"bias must be whole numbers or one of {', '.join(DTYPES)}, got {found.dtype}"
        )
    return found


def mask_of(mask: Any, full: tuple[int, ...]) -> Array | None:
    """Return the mask with four axes."""
    if mask is None:
        return None
    found = _broadcastable("mask", mask, full)
    if found.dtype != jnp.bool_:
        raise TypeError(f"mask must be a boolean array, True where visible, got {found.dtype}")
    return found


def _broadcastable(name: str, given: Any, full: tuple[int, ...]) -> Array:
    array = array_of(name, given)
    shape = (1,) * (4 - array.ndim) + array.shape
    if len(shape) != 4 or any(a not in (1, b) for a, b in zip(shape, full, strict=True)):
        raise ValueError(f"{name} must have axes that broadcast to {full}, got {array.shape}")
    return array.reshape(shape)


def lengths_of(name: str, lengths: Any, batch: int) -> Array | None:
    """Return a whole number for each sequence of the batch."""
    if lengths is None:
        return None
    found = array_of(name, lengths)
    if found.shape != (batch,) or not jnp.issubdtype(found.dtype, jnp.integer):
        raise ValueError(
            f"{name} must be whole numbers of shape ({batch},), got {found.dtype} of shape "
            f"{found.shape}"
        )
    return found


def scale_of(scale: Any, width: int) -> Any:
    """Return the scale as a Python number; one that is traced stays as it is."""
    if scale is None:
        return 1 / math.sqrt(width)
    is_number = isinstance(scale, int | float | np.generic | np.ndarray | Array)
    if not is_number or jnp.shape(scale) or not jnp.issubdtype(jnp.result_type(scale), jnp.number):
        raise TypeError(f"scale must be a number, got {scale!r}")
    if jnp.iscomplexobj(scale):
        raise TypeError(f"scale must be a real number, got {scale!r}")
    if isinstance(scale, jax.core.Tracer):
        return scale
    if math.isnan(scale):
        raise ValueError("scale must be a number, got NaN")
    return float(scale)


def causality_of(is_causal: Any) -> bool:
    """Return whether a query sees no key after its own."""
    if not isinstance(is_causal, bool | np.bool_):
        kind = type(is_causal).__name__
        raise TypeError(f"is_causal must be True or False when the call is traced, got {kind}")
    return bool(is_causal)


def window_of(size: Any) -> tuple[int, int] | None:
    """Return how many keys to the left and to the right are seen; one number is for both."""
    if size is None:
        return None
    sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
    whole = [isinstance(n, int | np.integer) and not isinstance(n, bool) for n in sides]
    if len(sides) != 2 or not all(whole) or min(sides) < 0:
        raise ValueError(
            "local_window_size must be a whole number of at least 0, or a pair of them, (left, "
            f"right), got {size!r}"
        )
    return int(sides[0]), int(sides[1])


def require_policy_of_jax(policy: object) -> None:
    """Raise an error unless it is a policy that attention in JAX can follow."""
    require_policy(policy)
    if isinstance(policy, Policy) and policy.sets_sink_apart:
        raise NotImplementedError(
            "attention in JAX cannot set a row's sink apart, as the policy does: calibrate one "
            "that does not (--no-sink)"
        )
