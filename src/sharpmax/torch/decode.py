"""Attention of a few queries over a long cache, as when a model writes one token after another.

Where a whole prompt is bound by arithmetic, one query is bound by the bytes of the keys and
values, and there are few rows: their logits can be written down. So β costs no second reading
of the keys, and rows that β makes sharp need only some of the values. The kernels themselves
are in `kernels/decode.py`, which needs Triton; this module decides whether to take a call.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from sharpmax.arrays import at_least
from sharpmax.policies import ConstantRows
from sharpmax.rows import SMALLEST_BETA
from sharpmax.statistics import RowStatistics
from sharpmax.torch.row_statistics.triton import HAS_TRITON, LARGEST_WIDTH, interpreted

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.policy import Policy
    from sharpmax.torch.scores import Scores

LOST = 2.0**-9
"""The weight that may be left out by default, in units of the dtype's eps: 2⁻¹⁶ for bf16."""

LONG_CACHE = 2**16
"""Keys from which on values to skip pay for the logits that tell which, even where β needs none."""

MOST_ROWS = {torch.float32: 16, torch.float16: 64, torch.bfloat16: 64}
"""The most rows that share their keys (queries times the heads to a key head), by dtype."""


def refusal(scores: Scores, value: Tensor) -> str | None:
    """Tell why the kernels cannot take the call, or None."""
    query, key = scores.query, scores.key
    if not HAS_TRITON:
        return "need Triton, which is not installed"
    if torch.compiler.is_compiling():
        return "cannot be traced by torch.compile"
    if query.device.type != "cuda" and not interpreted():
        return f"need a CUDA device, got {query.device.type}"
    if query.dtype not in MOST_ROWS:
        return f"have no kernel for {query.dtype}"
    width = max(query.shape[-1], value.shape[-1])
    if width > LARGEST_WIDTH:
        return f"take widths up to {LARGEST_WIDTH}, got {width}"
    if query.numel() == 0 or value.numel() == 0:
        return "need at least one query, and values of a width of at least 1"
    rows = query.shape[1] // key.shape[1] * query.shape[2]
    most = MOST_ROWS[query.dtype]
    if rows > most:
        return f"take up to {most} queries times heads to a key head, got {rows}"
    if not scores.scale > 0:
        return f"need a scale above 0, got {scores.scale}"
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        return "have no gradient, and one is wanted"
    return None


def decode(
    scores: Scores,
    value: Tensor,
    policy: Policy,
    lost: float | None = None,
    counts_keys: bool = True,
) -> tuple[Tensor, RowStatistics]:
    """Return softmax(β·logits)·value and the statistics of the plain logits.

    The call must be one that `refusal` lets pass.

    Args:
        scores: The logits of the queries.
        value: Of shape (batch, key heads, keys, value width).
        policy: Chooses β; it may read anything but the rows themselves ("entropy_at").
        lost: The most of a row's weight that may be left out, below 1. The tiles of keys that
            weigh least are left out as long as their weights, relative to the row's largest,
            sum to `lost` at most, by a bound; the row's whole sum is at least 1. The rest is
            normalised to 1, so the output moves by at most 2·lost·max|value|. With 0 nothing
            is left out; None is 1/256 of the rounding of the dtype.
        counts_keys: Whether the statistics tell the length; otherwise it is NaN.
    """
    from sharpmax.torch.kernels import decode as kernel
    from sharpmax.torch.kernels.polynomial import polynomial_settings

    if "entropy_at" in policy.reads:
        raise NotImplementedError(
            f"decoding does not keep the rows, which {type(policy).__name__} chooses β from"
        )
    while isinstance(policy, ConstantRows):
        policy = policy.base
    if lost is None:
        lost = LOST * torch.finfo(value.dtype).eps

    def choose(maximum: Tensor, lse: Tensor, entropy: Tensor) -> Tensor:
        length = scores.lengths()
        beta = at_least(SMALLEST_BETA, policy(RowStatistics(maximum, lse, entropy, length)))
        if isinstance(beta, int | float):
            return torch.full_like(entropy, beta)
        if beta.requires_grad:
            raise NotImplementedError("decoding has no gradient, and the policy wants one")
        chosen: Tensor = beta.to(entropy).expand(scores.shape).contiguous()
        return chosen

    out, maximum, lse, entropy = kernel.decode(
        *_seen(scores, value), polynomial_settings(policy), choose, lost
    )
    length = scores.lengths() if counts_keys else math.nan
    return out, RowStatistics(maximum, lse, entropy, length)


def _seen(scores: Scores, value: Tensor) -> tuple[Scores, Tensor]:
    """Return the scores and values without the keys before all queries' windows.

    The last query stands at the last key, so the positions stay what they were.
    """
    first = scores.keys_seen(slice(0, scores.shape[-1])).start
    if first == 0:
        return scores, value
    mask = scores.mask
    if mask is not None and mask.ndim > 0 and mask.shape[-1] > 1:
        mask = mask[..., first:]
    return replace(scores, key=scores.key[:, :, first:], mask=mask), value[:, :, first:]
