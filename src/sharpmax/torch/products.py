"""Rows of attention in training by large products of bfloat16, on a CPU that multiplies it fast.

PyTorch's own kernel for CPUs multiplies small tiles, which makes little of a CPU with instructions
for bfloat16. Here the logits of a few hundred queries are one product, written where the last ones
were. Both halves of the corridor go by these rows: `row_statistics.products` and
`tempered.products`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from sharpmax.torch.chunks import in_a_transform

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from sharpmax.torch.scores import Scores

FEWEST_QUERIES = 64
"""Fewer make no large product."""


def refusal(scores: Scores, *others: object) -> str | None:
    """Tell why large products are not for these logits and what else wants a gradient, or None."""
    if torch.compiler.is_compiling() or in_a_transform():
        return "cannot be traced or transformed"
    if scores.query.device.type != "cpu" or scores.query.dtype != torch.bfloat16:
        return "are for bfloat16 on a CPU"
    if not multiplies_fast():
        return "need a CPU that multiplies bfloat16 by itself"
    tensors = scores.query, scores.key, *others
    if not (torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in tensors)):
        return "round the logits, which only a gradient may bear"
    if next(scores.chunks()).stop < FEWEST_QUERIES:
        return f"need at least {FEWEST_QUERIES} queries at a time"
    if scores.softcap is not None:
        return "cannot scale logits behind a softcap"
    if not bool((scores.lengths() > 0).all()):
        return "need a key for every query"
    return None


@cache
def multiplies_fast() -> bool:
    """Tell whether the CPU multiplies bfloat16, and in no way that PyTorch's kernel makes use of.

    (That is AMX, for which PyTorch's kernel has tiles of its own.)
    """
    has_products: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    has_instructions = torch.cpu._is_avx512_bf16_supported()
    return has_products and has_instructions and not torch.cpu._is_amx_tile_supported()


class ProductRows:
    """The rows of a few queries at a time; those of heads that share their keys are stacked.

    The scale must be in the queries already.
    """

    def __init__(self, scores: Scores) -> None:
        self.scores = scores
        batch, heads, _ = scores.shape
        self._largest = batch * heads * next(scores.chunks()).stop * scores.key.shape[2]
        self._places: dict[str, Tensor] = {}

    def parts(self) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """Yield queries, the keys that they see, their logits and their weights.

        They lie where the last ones were.
        """
        for queries in self.scores.chunks():
            keys = self.scores.keys_seen(queries)
            some = self.stacked(self.scores.query, queries)
            logits = self.product(some, self.scores.key[:, :, keys].mT, "logits")
            _hide(self.unstacked(logits), self.scores, queries, keys)
            place = self.place("weights", logits.shape)
            yield queries, keys, logits, torch.softmax(logits, dim=-1, out=place)

    def stacked(self, tensor: Tensor, queries: slice) -> Tensor:
        """Return these queries' part of a tensor, the heads that share their keys as rows."""
        batch, heads, _ = self.scores.shape
        key_heads = self.scores.key.shape[1]
        rows = heads // key_heads * (queries.stop - queries.start)
        return tensor[:, :, queries].reshape(batch, key_heads, rows, tensor.shape[-1])

    def unstacked(self, rows: Tensor) -> Tensor:
        """Return rows by head again."""
        batch, heads, _ = self.scores.shape
        return rows.view(batch, heads, rows.shape[2] * rows.shape[1] // heads, rows.shape[3])

    def product(self, left: Tensor, right: Tensor, name: str) -> Tensor:
        """Multiply into a place."""
        out = self.place(name, torch.Size((*left.shape[:-1], right.shape[-1])))
        return torch.matmul(left, right, out=out)

    def place(self, name: str, shape: torch.Size) -> Tensor:
        """Return memory that is there from the last time: new takes longer to get than to fill."""
        if name not in self._places:
            self._places[name] = self.scores.query.new_empty(self._largest)
        return self._places[name][: shape.numel()].view(shape)


def _hide(logits: Tensor, scores: Scores, queries: slice, keys: slice) -> None:
    """Write −∞ where a query does not see a key."""
    if scores.is_causal and scores.window is None and scores.mask is None:
        # What stands before all of these queries is seen by each of them.
        own = max(keys.start, queries.start + scores.offset)
        logits, keys = logits[..., own - keys.start :], slice(own, keys.stop)
    visible = scores.visible(queries, keys)
    if visible is None:
        return
    # A sum takes half the time of filling in by a mask that all heads share.
    hidden = torch.zeros_like(visible, dtype=logits.dtype).masked_fill_(~visible, -torch.inf)
    logits += hidden
