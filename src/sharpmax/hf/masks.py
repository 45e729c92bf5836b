"""Which keys a model's queries see, told to attention in as little memory as it takes.

transformers makes a layer's mask by asking the function that is registered beside the attention
itself. For plain causal attention, within a window or not and padded or not, ours answers with
one entry a key, and attention adds causality and the window by itself. Everything else (static
caches, packed sequences, images that see each other, …) gets the whole matrix, as for SDPA.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import causal_mask_function, prepare_padding_mask, sdpa_mask

MARK = "sharpmax"
"""The attribute by which a mask tells that it is a `KeyMask`; a copy of it would not have it."""


@dataclass(frozen=True)
class KeyMask:
    """What a mask of one entry a key leaves to attention: it is causal besides, in a window or not.

    Attributes:
        window: How many keys back a query sees, or None.
        is_padded: Whether the mask hides anything.
    """

    window: int | None
    is_padded: bool


def visible_keys(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    device: torch.device | str = "cpu",
    **settings: Any,
) -> Tensor | None:
    """Return a boolean mask, True where a query sees a key; None for plain causal attention.

    A mask of one row for several queries, (batch, 1, 1, keys), tells which keys are no padding;
    attention is then causal besides, the last query standing at the last key. It carries a
    `KeyMask`.
    """
    window = _window(mask_function)
    is_linear = (
        q_length > 1
        and allow_is_causal_skip
        and not torch.compiler.is_compiling()
        and isinstance(q_offset, int)
        and q_offset + q_length == kv_offset + kv_length
        and (mask_function is causal_mask_function or window is not None)
    )
    if not is_linear:
        whole: Tensor | None = sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,  # type: ignore[arg-type]
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            local_size=local_size,
            allow_is_causal_skip=allow_is_causal_skip,
            device=device,
            **settings,
        )
        return whole
    seen = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if seen is not None:
        seen = seen[:, kv_offset : kv_offset + kv_length]
    is_padded = seen is not None and not bool(seen.all())
    if not is_padded and window is None and q_length == kv_length:
        return None
    if seen is None:
        seen = torch.ones(1, kv_length, dtype=torch.bool, device=device)
    mask: Tensor = seen[:, None, None, :]
    setattr(mask, MARK, KeyMask(window, is_padded))
    return mask


def _window(mask_function: Callable[..., Any]) -> int | None:
    """Return n if a mask function is "causal, and n keys back", as transformers makes it."""
    parts = _held(mask_function)
    if not isinstance(parts, tuple) or len(parts) != 2 or parts[1] is not causal_mask_function:
        return None
    if not getattr(parts[0], "__qualname__", "").startswith("sliding_window_overlay."):
        return None
    window = _held(parts[0])
    return window if isinstance(window, int) else None


def _held(function: Callable[..., Any]) -> Any:
    """Return the one thing that a function made by another holds on to; None if there are more."""
    closure = getattr(function, "__closure__", None)
    return closure[0].cell_contents if closure and len(closure) == 1 else None
