"""Which keys a model's queries see, told to attention in as little memory as it takes.

transformers makes a layer's mask by asking the function that is registered beside the attention
itself. For plain causal attention, within a window or not and padded or not, ours answers with
one entry a key, and attention adds causality and the window by itself. Everything else (static
caches, packed sequences, images that see each other, …) gets the whole matrix, as for SDPA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import causal_mask_function, prepare_padding_mask, sdpa_mask


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
    attention is then causal besides, the last query standing at the last key. It carries the
    layer's `window`, and as `is_padded` whether it hides anything.
    """
    is_linear = (
        q_length > 1
        and allow_is_causal_skip
        and not torch.compiler.is_compiling()
        and isinstance(q_offset, int)
        and q_offset + q_length == kv_offset + kv_length
        and (mask_function is causal_mask_function or _is_causal_window(mask_function))
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
    has_window = mask_function is not causal_mask_function
    if not is_padded and not has_window and q_length == kv_length:
        return None
    if seen is None:
        seen = torch.ones(1, kv_length, dtype=torch.bool, device=device)
    mask: Any = seen[:, None, None, :]
    mask.window = local_size if has_window else None
    mask.is_padded = is_padded
    kept: Tensor = mask
    return kept


def _is_causal_window(mask_function: Callable[..., Any]) -> bool:
    """Tell whether a mask function is "causal, and so many keys back", as transformers makes it."""
    closure = getattr(mask_function, "__closure__", None)
    parts = closure[0].cell_contents if closure and len(closure) == 1 else ()
    return (
        isinstance(parts, tuple)
        and len(parts) == 2
        and getattr(parts[0], "__qualname__", "").startswith("sliding_window_overlay.")
        and parts[1] is causal_mask_function
    )
