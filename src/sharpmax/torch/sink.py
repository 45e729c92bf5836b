"""Attention beside a shifted sink: γ added to the logit of one key of every row, after β.

The sink is key 0, or the first key that the mask shows. Where it is the same key for all queries,
the logits themselves get γ, by one more column of query and key: γ/scale in the query, and in the
keys 1 at the sink and 0 elsewhere. So every kernel for attention serves, with all the digits that
it has. Elsewhere the logits are made a few queries at a time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from sharpmax.policies import Fixed
from sharpmax.torch import decode
from sharpmax.torch.tempered import attend
from sharpmax.torch.tempered.chunked import attend_choosing

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.rows import LogitRows
    from sharpmax.torch.scores import Scores

WIDTH_STEP = 8
"""Widths that are multiples of it have the fastest kernels."""


def attend_shifting(
    scores: Scores,
    value: Tensor,
    beta: Tensor | float,
    shift: Tensor | float,
    lost: float | None = None,
) -> Tensor:
    """Return softmax(β·logits + γ·[sink])·value.

    Args:
        scores: How the logits are made.
        value: Of shape (batch, key heads, keys, value width).
        beta: A number above 0, or an array that broadcasts to the rows.
        shift: γ, likewise.
        lost: As in `sharpmax.torch.attention`.
    """
    dtype = torch.promote_types(value.dtype, torch.float32)
    beta, shift = (
        torch.as_tensor(x, dtype=dtype, device=value.device).expand(scores.shape)
        for x in (beta, shift)
    )
    places = sink_places(scores)
    if scores.softcap is None and scores.scale > 0 and _are_shared(places):
        return _by_column(scores, value, beta, shift, places[..., :1], lost)

    def shifted(logits: Tensor, queries: slice, keys: slice) -> Tensor:
        some = places if places.shape[-1] == 1 else places[..., queries]
        by = (shift / beta)[..., queries]
        return shift_logits(logits, some - keys.start, by)

    def chosen(rows: LogitRows, queries: slice) -> Tensor:
        del rows
        return beta[..., queries]

    return attend_choosing(scores, value, chosen, shifted)


def sink_places(scores: Scores) -> Tensor:
    """Return where the sink of every row is, of shape (batch, 1, queries), or 1 for all alike."""
    mask = scores.whole_mask
    if mask is None:
        return torch.zeros(1, 1, 1, dtype=torch.long, device=scores.query.device)
    if mask.shape[1] > 1:
        raise NotImplementedError(
            "attention cannot shift the sink under a mask that differs by head"
        )
    return mask.to(torch.uint8).argmax(-1)


def shift_logits(logits: Tensor, places: Tensor, by: Tensor) -> Tensor:
    """Return logits with a number for every row added to the one at its place, if it has it."""
    keys = torch.arange(logits.shape[-1], device=logits.device)
    return torch.where(keys == places[..., None], logits + by[..., None], logits)


def _are_shared(places: Tensor) -> bool:
    """Tell whether all queries of a sequence have the same sink."""
    if places.shape[-1] == 1:
        return True
    return not torch.compiler.is_compiling() and bool((places == places[..., :1]).all())


def _by_column(
    scores: Scores,
    value: Tensor,
    beta: Tensor,
    shift: Tensor,
    places: Tensor,
    lost: float | None,
) -> Tensor:
    """Attend with γ in one more column of query and key."""
    query, key, width = scores.sharper_query(beta), scores.key, value.shape[-1]
    more = -(query.shape[-1] + 1) % WIDTH_STEP
    extra = (shift / scores.scale).to(query.dtype)[..., None]
    first = torch.zeros_like(key[:, :, :, :1])
    first = first.scatter(2, places[..., None].expand(*key.shape[:2], 1, 1), 1.0)
    wider = replace(
        scores,
        query=pad(torch.cat((query, extra), dim=-1), (0, more)),
        key=pad(torch.cat((key, first), dim=-1), (0, more)),
    )
    if value.device.type == "cuda" and decode.refusal(wider, value) is None:
        return decode.decode(wider, value, Fixed(1.0), lost, counts_keys=False)[0]
    # Some kernels want values as wide as keys.
    return attend(wider, pad(value, (0, wider.key.shape[-1] - width)), 1.0)[..., :width]
