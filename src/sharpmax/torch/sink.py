"""Attention beside a shifted sink: γ added to the logit of one key of every row, after β.

Of attention without it, only the sink's weight p is needed: with m = (e^γ − 1)·p the output becomes
(output + m·value of the sink) / (1 + m). There are two ways to p, each by any kernel that there is.
Attention itself tells it, as one more column of the values that is 1 at the sink and 0 elsewhere:
on a CPU that is nearly free. Or p = exp(β·s − lse), where s is the sink's logit and lse that of the
sharpened row: on a GPU, a cache of values is not copied for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from sharpmax.policies import Fixed
from sharpmax.torch import decode
from sharpmax.torch.row_statistics import IMPLEMENTATIONS, chosen
from sharpmax.torch.tempered import attend

if TYPE_CHECKING:
    from torch import Tensor

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
    places = sink_places(scores)
    on_gpu = scores.query.device.type == "cuda"
    if scores.softcap is not None or (not on_gpu and bool((places == places[..., :1]).all())):
        out, weight = _by_column(scores, value, beta, places[..., :1])
    else:
        out, weight = _by_lse(scores, value, beta, places, lost)
    first = _at(places, value, scores).to(weight.dtype)
    shift = torch.as_tensor(shift, dtype=weight.dtype, device=weight.device)
    grown = (torch.expm1(shift) * weight)[..., None]
    return ((out.to(weight.dtype) + grown * first) / (1 + grown)).to(out.dtype)


def shift_weights(scores: Scores, weights: Tensor, shift: Tensor | float) -> Tensor:
    """Return all weights of attention with γ added to the logits of the sinks."""
    place = sink_places(scores).expand(weights.shape[:-1])[..., None]
    shift = torch.as_tensor(shift, dtype=weights.dtype, device=weights.device)
    factor = torch.expm1(shift).expand(weights.shape[:-1])[..., None]
    grown = torch.take_along_dim(weights, place, dim=-1) * factor
    return weights.scatter_add(-1, place, grown) / (1 + grown)


def sink_places(scores: Scores) -> Tensor:
    """Return where the sink of every row is: key 0, or the first key that the mask shows.

    The places have shape (batch, 1, queries), or 1 for what all share.
    """
    if scores.mask is None:
        return torch.zeros(1, 1, 1, dtype=torch.long, device=scores.query.device)
    mask = scores.mask[(None,) * (4 - scores.mask.ndim)]
    if mask.shape[1] > 1:
        raise NotImplementedError(
            "attention cannot shift the sink under a mask that differs by head"
        )
    return mask.to(torch.uint8).argmax(-1)


def _by_column(
    scores: Scores, value: Tensor, beta: Tensor | float, places: Tensor
) -> tuple[Tensor, Tensor]:
    """Return attention's output and the sink's weight, which is one more column of it."""
    width = max(scores.query.shape[-1], value.shape[-1] + 1)
    width += -width % WIDTH_STEP
    query, key = (pad(x, (0, width - x.shape[-1])) for x in (scores.query, scores.key))
    wider = pad(value, (0, width - value.shape[-1]))
    column = torch.zeros_like(wider[:, :1, :, 0])
    column = column.scatter(-1, places.expand(value.shape[0], 1, 1), 1.0)
    wider = torch.cat(
        (
            value,
            column.expand(value.shape[:-1])[..., None],
            wider[..., value.shape[-1] + 1 :],
        ),
        dim=-1,
    )
    out = attend(replace(scores, query=query, key=key), wider, beta)
    weight = out[..., value.shape[-1]]
    dtype = torch.promote_types(weight.dtype, torch.float32)
    return out[..., : value.shape[-1]], weight.to(dtype)


def _by_lse(
    scores: Scores, value: Tensor, beta: Tensor | float, places: Tensor, lost: float | None
) -> tuple[Tensor, Tensor]:
    """Return attention's output and the sink's weight, β being in the query."""
    if isinstance(beta, int | float):
        scores = replace(scores, scale=scores.scale * beta)
    else:
        scores = replace(scores, query=scores.sharper_query(beta.expand(scores.shape)))
    if scores.query.device.type == "cuda" and decode.refusal(scores, value) is None:
        out, rows = decode.decode(scores, value, Fixed(1.0), lost, counts_keys=False)
    else:
        out, rows = (
            attend(scores, value, 1.0),
            IMPLEMENTATIONS[chosen(scores)].row_statistics(scores),
        )
    key = _at(places, scores.key, scores).to(rows.lse.dtype)
    logit = scores.scale * (scores.query.to(rows.lse.dtype) * key).sum(-1)
    seen = torch.where(_is_seen(scores, places), logit - rows.lse, -torch.inf)
    return out, seen.exp().clamp(max=1)


def _at(places: Tensor, held: Tensor, scores: Scores) -> Tensor:
    """Return the sinks' keys or values, for every head."""
    place = places.expand(held.shape[0], held.shape[1], -1)[..., None]
    group = scores.query.shape[1] // held.shape[1]
    return torch.take_along_dim(held, place, dim=2).repeat_interleave(group, dim=1)


def _is_seen(scores: Scores, places: Tensor) -> Tensor:
    """Tell which queries see their sink."""
    position = torch.arange(scores.shape[-1], device=places.device) + scores.offset
    seen = (places >= 0).expand(-1, -1, scores.shape[-1])
    if scores.is_causal:
        seen = seen & (position >= places)
    if scores.window is not None:
        seen = seen & ((position - places).abs() < scores.window)
    if scores.mask is not None:
        seen = seen & scores.mask[(None,) * (4 - scores.mask.ndim)].any(-1)
    return seen
