"""How the logits of attention are made: from query and key, scale, softcap and visibility.

A `Scores` is the definition that every implementation of attention and of its row statistics
follows. It holds no logits; it makes those of a few queries at a time where they are wanted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

CHUNK_ELEMENTS = 2**22
"""Logits made at a time, over all batches and heads, where they must be made at all."""


@dataclass(frozen=True)
class Scores:
    """The logits softcap(scale·q·kᵀ) of every query, and which keys each of them sees.

    Attributes:
        query: Of shape (batch, heads, queries, width).
        key: Of shape (batch, key heads, keys, width); the heads are a multiple of the key heads,
            consecutive heads sharing one.
        scale: What the dot products are multiplied by.
        is_causal: Whether a query sees no key after it. The last query stands at the last key.
        window: How many keys back a query sees, itself counted; ahead too if not causal.
        softcap: c in c·tanh(s/c), or None.
        mask: Which keys each query sees besides, broadcastable to (batch, heads, queries, keys).
    """

    query: Tensor
    key: Tensor
    scale: float
    is_causal: bool = False
    window: int | None = None
    softcap: float | None = None
    mask: Tensor | None = None

    @classmethod
    def of(
        cls,
        query: Tensor,
        key: Tensor,
        *,
        is_causal: bool,
        mask: Tensor | None,
        window: int | None,
        softcap: float | None,
        scale: float | None,
    ) -> Scores:
        """Check that the arguments fit together, or name the one that does not."""
        for name, tensor in (("query", query), ("key", key)):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
            if tensor.ndim != 4:
                raise ValueError(
                    f"{name} must have shape (batch, heads, length, width), "
                    f"got {tuple(tensor.shape)}"
                )
            if tensor.dtype not in DTYPES:
                known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
                raise TypeError(f"{name} must have one of the dtypes {known}, got {tensor.dtype}")
        require_alike("key", key, query)
        if key.shape[-1] != query.shape[-1]:
            raise ValueError(
                f"key must have the width of query, {query.shape[-1]}, got {key.shape[-1]}"
            )
        if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
            raise ValueError(
                f"query must have a multiple of the {key.shape[1]} heads of key, "
                f"got {query.shape[1]}"
            )
        if key.shape[2] == 0:
            raise ValueError("key must hold at least one key, got none")
        if query.shape[-1] == 0:
            raise ValueError("query must have a width of at least 1, got 0")
        if window is not None and (not isinstance(window, int) or window < 1):
            raise ValueError(f"window must be a whole number of at least 1, got {window!r}")
        if not isinstance(is_causal, bool):
            raise TypeError(f"is_causal must be True or False, got {is_causal!r}")
        for name, number in (("softcap", softcap), ("scale", scale)):
            if number is not None and not isinstance(number, int | float):
                raise TypeError(f"{name} must be a number or None, got {number!r}")
        if softcap is not None and not 0 < softcap < math.inf:
            raise ValueError(f"softcap must be a finite number above 0, got {softcap}")
        # By comparisons: they can be traced where the compiler takes a number for a variable.
        if scale is not None and not -math.inf < scale < math.inf:
            raise ValueError(f"scale must be a finite number, got {scale}")
        scores = cls(
            query,
            key,
            1 / math.sqrt(query.shape[-1]) if scale is None else scale,
            is_causal,
            window,
            softcap,
            mask,
        )
        if mask is not None:
            scores._require_mask(mask)
        return scores

    def _require_mask(self, mask: Tensor) -> None:
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise TypeError(f"mask must be a boolean tensor, True where visible, got {kind}")
        if mask.device != self.query.device:
            raise ValueError(f"mask must be on {self.query.device}, got {mask.device}")
        full = (*self.shape, self.key.shape[2])
        fits = mask.ndim <= 4 and all(
            size in (1, wanted)
            for size, wanted in zip(reversed(mask.shape), reversed(full), strict=False)
        )
        if not fits:
            raise ValueError(f"mask must broadcast to {full}, got {tuple(mask.shape)}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of an array with one entry a row: (batch, heads, queries)."""
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries

    @property
    def offset(self) -> int:
        """The position of the first query among the keys: the last stands at the last key."""
        return self.key.shape[2] - self.query.shape[2]

    @property
    def sees_all(self) -> bool:
        """Whether every query sees every key."""
        causal = self.is_causal and self.query.shape[2] > 1
        return not causal and self.window is None and self.mask is None

    @property
    def whole_mask(self) -> Tensor | None:
        """The mask with all of its four dimensions."""
        return None if self.mask is None else self.mask[(None,) * (4 - self.mask.ndim)]

    @property
    def is_square_causal(self) -> bool:
        """Whether query i sees exactly the keys up to i, as many keys as queries."""
        return self.is_causal and self.offset == 0 and self.window is None and self.mask is None

    def arguments(self) -> tuple[Any, ...]:
        """Return what the fused operators take: query, key, mask and settings."""
        settings = self.scale, self.is_causal, self.window, self.softcap
        return self.query, self.key, self.mask, *settings

    def bounded(self, beta: Tensor) -> Tensor:
        """Return β, but no more than leaves β·q finite in the queries' dtype.

        Only float16 ends so early that it matters, and only for β of many thousands.
        """
        if self.query.dtype != torch.float16:
            return beta
        largest = self.query.detach().abs().amax(-1).float().clamp(min=1e-7)
        return torch.minimum(beta, 0.999 * torch.finfo(torch.float16).max / largest)

    def sharper_query(self, beta: Tensor) -> Tensor:
        """Return β·q in the queries' dtype."""
        if self.query.dtype != torch.float16:
            return self.query * beta[..., None].to(self.query.dtype)
        return (self.query.float() * self.bounded(beta)[..., None]).to(torch.float16)

    def tempered(self, beta: Tensor | float) -> tuple[Tensor, float]:
        """Return queries and a scale with β in one of them: β·(q·k) = (β·q)·k."""
        if isinstance(beta, int | float):
            return self.query, self.scale * beta
        return self.sharper_query(beta), self.scale

    def lengths(self) -> Tensor:
        """Return how many keys every query sees, in float32 or the query's float64."""
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        device, keys = self.query.device, self.key.shape[2]
        if self.sees_all:
            return torch.full(self.shape, keys, dtype=dtype, device=device)
        if self.mask is None and self.window is None and self.offset >= 0:
            return torch.arange(self.offset + 1, keys + 1, dtype=dtype, device=device).expand(
                self.shape
            )
        if self.mask is None or self.mask.ndim < 2 or self.mask.shape[-2] == 1:
            return self._range_lengths().to(dtype).expand(self.shape)
        if not self.is_causal and self.window is None:
            seen = self.mask.broadcast_to((*self.mask.shape[:-1], keys))
            return seen.sum(-1, dtype=dtype).expand(self.shape)
        chunks = []
        for queries in self.chunks():
            visible = self.visible(queries, slice(0, keys))
            assert visible is not None
            size = queries.stop - queries.start
            count = visible.expand(*visible.shape[:-2], size, keys).sum(-1)
            chunks.append(count.expand(*self.shape[:2], size))
        return torch.cat(chunks, dim=-1).to(dtype)

    def _range_lengths(self) -> Tensor:
        """Count the keys in the range that each query sees, less those hidden from all queries."""
        device, last = self.query.device, self.key.shape[2] - 1
        position = torch.arange(self.shape[-1], device=device) + self.offset
        until = position.clamp(max=last) if self.is_causal else torch.full_like(position, last)
        since = torch.zeros_like(position)
        if self.window is not None:
            since = (position - self.window + 1).clamp(min=0)
            if not self.is_causal:
                until = (position + self.window - 1).clamp(max=last)
        if self.mask is None:
            return (until - since + 1).clamp(min=0)
        seen = self.mask.broadcast_to((*self.mask.shape[:-1], last + 1))
        before = pad(seen.cumsum(-1), (1, 0))
        count = before[..., (until + 1).clamp(min=0)] - before[..., since.clamp(max=last + 1)]
        count = count.clamp(min=0)
        return count if count.ndim < 2 else count.squeeze(-2)

    def chunks(self) -> Iterator[slice]:
        """Yield slices of queries, at least one, of about `CHUNK_ELEMENTS` logits each."""
        batch, heads, queries = self.shape
        size = max(1, CHUNK_ELEMENTS // max(1, batch * heads * self.key.shape[2]))
        for start in range(0, max(1, queries), size):
            yield slice(start, min(start + size, queries))

    def keys_seen(self, queries: slice) -> slice:
        """Return the range of keys that any of these queries can see, at least one key."""
        first, last = 0, self.key.shape[2] - 1
        if self.is_causal:
            last = min(last, queries.stop - 1 + self.offset)
        if self.window is not None:
            first = max(first, queries.start + self.offset - self.window + 1)
            last = min(last, queries.stop + self.offset + self.window - 2)
        last = max(last, 0)
        return slice(min(first, last), last + 1)

    def visible(self, queries: slice, keys: slice) -> Tensor | None:
        """Return which of these keys each of these queries sees; None where all see all."""
        visible = None
        if self.is_causal or self.window is not None:
            device = self.query.device
            position = torch.arange(queries.start, queries.stop, device=device)[:, None]
            distance = position + self.offset - torch.arange(keys.start, keys.stop, device=device)
            visible = torch.ones_like(distance, dtype=torch.bool)
            if self.is_causal:
                visible &= distance >= 0
            if self.window is not None:
                visible &= distance.abs() < self.window
        if self.mask is not None:
            mask = self.mask
            if mask.ndim > 1 and mask.shape[-2] > 1:
                mask = mask[..., queries, :]
            if mask.ndim > 0 and mask.shape[-1] > 1:
                mask = mask[..., keys]
            visible = mask if visible is None else visible & mask
        return visible

    def logits(self, queries: slice, keys: slice) -> Tensor:
        """Return the logits of these queries and keys, (batch, heads, queries, keys).

        They are in float32 or float64; what is not visible is still in them.
        """
        batch, heads, _, width = self.query.shape
        key_heads, group = self.key.shape[1], heads // self.key.shape[1]
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        query = self.query[:, :, queries].to(dtype) * self.scale
        key = self.key[:, :, keys].to(dtype)
        # Heads that share their keys are stacked as rows: no key is copied.
        rows = query.reshape(batch, key_heads, group * query.shape[2], width)
        logits = (rows @ key.mT).view(batch, heads, query.shape[2], key.shape[2])
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


def require_alike(name: str, tensor: Tensor, query: Tensor) -> None:
    """Raise an error that names the argument unless it has the query's dtype, device and batch."""
    if tensor.dtype != query.dtype:
        raise ValueError(f"{name} must have the dtype of query, {query.dtype}, got {tensor.dtype}")
    if tensor.device != query.device:
        raise ValueError(f"{name} must be on {query.device} like query, got {tensor.device}")
    if tensor.shape[0] != query.shape[0]:
        raise ValueError(
            f"{name} must have the batch size of query, {query.shape[0]}, got {tensor.shape[0]}"
        )
