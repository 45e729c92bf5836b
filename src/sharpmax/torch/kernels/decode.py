"""Sharpened attention of a few queries over a long cache of keys and values.

Plain decoding reads every key and every value once. So does this, β or not: `_logits_kernel`
reads the keys and writes the logits down (a few numbers where a key is a hundred), with the sums
that give the entropy; `_choose_kernel` merges the sums and chooses β; `_values_kernel` reads the
logits back and the values. Values are read only where they count: sharpening leaves most tiles
of a long row without weight. `_combine_kernel` adds up the parts.

The heads that share their keys, and their queries, are the rows of one stack: row r is query
r % queries of head r // queries. A stack's tiles of keys are shared out over splits, since one
stack alone would leave most of the device idle. Logits are in base 2 throughout.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from sharpmax.rows import SMALLEST_BETA
from sharpmax.torch.kernels.launch import Launcher, processors
from sharpmax.torch.kernels.polynomial import polynomial_beta
from sharpmax.torch.kernels.rounding import ceil_div, power_of_2
from sharpmax.torch.kernels.tile import (
    FAR_BELOW,
    LN_2,
    LOG2_E,
    dot_products,
    is_visible,
    softcapped,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from sharpmax.torch.scores import Scores

LEAST_BETA = tl.constexpr(SMALLEST_BETA)
MOST_SPLITS = 1024
PROGRAMS_PER_PROCESSOR = 2
INTERPRETED_SPLITS = 3
"""Where there is no device to fill: enough that there is something to merge."""

NO_POLYNOMIAL: dict[str, Any] = {
    "threshold": 0.0,
    "minimum": 1.0,
    "end": 0.0,
    "COEFFICIENTS": (1.0,),
    "DEGREE": 0,
}
"""In the place of a polynomial, where β is chosen outside."""


# The keys grow by one a step: kernels specialised on their number would be compiled anew.
@triton.jit(do_not_specialize=["keys", "tiles", "share", "window"])
def _logits_kernel(
    q,
    k,
    mask,
    logits,
    tops,
    masses,
    sums,
    q_b,
    q_h,
    q_l,
    k_b,
    k_h,
    k_l,
    mask_b,
    mask_h,
    mask_q,
    mask_k,
    key_heads,
    queries,
    keys,
    tiles,
    share,
    window,
    scale,
    softcap,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    MASK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write a split's logits, each tile's largest and its mass log₂ Σ 2^x, and m, l and u."""
    stack = tl.program_id(0)
    split = tl.program_id(1)
    batch = (stack // key_heads).to(tl.int64)
    key_head = stack % key_heads
    r = tl.arange(0, BLOCK_M)
    inside = r < GROUP * queries
    row = stack.to(tl.int64) * (GROUP * queries) + r
    head = (key_head * GROUP + r // queries).to(tl.int64)
    query = tl.where(inside, r % queries, queries)
    width = tl.arange(0, BLOCK_D)
    tile = tl.load(
        q + batch * q_b + (head * q_h + query.to(tl.int64) * q_l)[:, None] + width[None, :],
        mask=inside[:, None] & (width[None, :] < WIDTH),
        other=0.0,
    )
    k += batch * k_b + key_head.to(tl.int64) * k_h
    mask += batch * mask_b + head[:, None] * mask_h

    m = tl.full([BLOCK_M], FAR_BELOW, tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    u = tl.zeros([BLOCK_M], tl.float32)
    for at in tl.range(split * share, tl.minimum((split + 1) * share, tiles)):
        columns = at * BLOCK_N + tl.arange(0, BLOCK_N)
        keys_tile = tl.load(
            k + columns[:, None].to(tl.int64) * k_l + width[None, :],
            mask=(columns[:, None] < keys) & (width[None, :] < WIDTH),
            other=0.0,
        )
        x = dot_products(tile, tl.trans(keys_tile))
        if SOFTCAP:
            x = softcapped(x, scale, softcap) * LOG2_E
        else:
            x = x * (scale * LOG2_E)
        visible = is_visible(
            query[:, None],
            columns[None, :],
            queries,
            keys,
            window,
            mask,
            mask_q,
            mask_k,
            CAUSAL,
            WINDOW,
            MASK,
        )
        x = tl.where(visible, x, 2 * FAR_BELOW)
        tl.store(
            logits + row[:, None] * (tiles * BLOCK_N) + columns[None, :], x, mask=inside[:, None]
        )
        top = tl.max(x, 1)
        tl.store(tops + row * tiles + at, top, mask=inside)
        new = tl.maximum(m, top)
        z = x - new[:, None]
        p = tl.exp2(z)
        fade = tl.exp2(m - new)
        total = tl.sum(p, 1)
        tl.store(masses + row * tiles + at, new + tl.log2(tl.maximum(total, 1e-38)), mask=inside)
        u = fade * (u + (m - new) * l) + tl.sum(p * z, 1)
        l = fade * l + total
        m = new
    sums += (row * tl.num_programs(1) + split) * 3
    tl.store(sums, m, mask=inside)
    tl.store(sums + 1, l, mask=inside)
    tl.store(sums + 2, u, mask=inside)


@triton.jit(do_not_specialize=["splits"])
def _choose_kernel(
    sums,
    maximum,
    lse,
    entropy,
    tops,
    betas,
    negligible,
    splits,
    lost,
    share_of_lost,
    threshold,
    minimum,
    end,
    COEFFICIENTS: tl.constexpr,
    DEGREE: tl.constexpr,
    POLYNOMIAL: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Merge the splits of a row into its statistics and, by a polynomial of H, into its β.

    What may be left out is `lost` in all, so `lost` over their number for each tile; but all of
    it where everything beside the largest weight, l − 1, is less than that anyway.
    """
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, BLOCK_S)
    sums += (row * splits + split) * 3
    parts_m = tl.load(sums, mask=split < splits, other=FAR_BELOW)
    parts_l = tl.load(sums + 1, mask=split < splits, other=0.0)
    parts_u = tl.load(sums + 2, mask=split < splits, other=0.0)
    m = tl.max(parts_m, 0)
    fade = tl.exp2(parts_m - m)
    l = tl.sum(fade * parts_l, 0)
    u = tl.sum(fade * (parts_u + (parts_m - m) * parts_l), 0)
    # A maximum overlooks a NaN, and so would the choice of tiles; the sum does not.
    m = tl.where(l == l, m, l)

    nothing = l == 0
    l = tl.where(nothing, 1.0, l)
    minus_infinity = float("-inf")
    h = (tl.log2(l) - u / l) * LN_2
    h = tl.where(h < 0, 0.0, h)
    tl.store(maximum + row, tl.where(nothing, minus_infinity, m * LN_2))
    tl.store(lse + row, tl.where(nothing, minus_infinity, (m + tl.log2(l)) * LN_2))
    tl.store(entropy + row, h)
    tl.store(tops + row, m)
    all_of_lost = tl.log2(tl.maximum(lost, 1e-38))
    limit = tl.where((lost > 0) & (l - 1 < lost / 2), all_of_lost, share_of_lost)
    tl.store(negligible + row, limit)
    if POLYNOMIAL:
        beta = polynomial_beta(h, threshold, minimum, end, COEFFICIENTS, DEGREE)
        tl.store(betas + row, tl.maximum(beta, LEAST_BETA))


@triton.jit(do_not_specialize=["keys", "tiles", "share"])
def _values_kernel(
    v,
    logits,
    tile_tops,
    masses,
    tops,
    betas,
    negligible,
    parts,
    sums,
    v_b,
    v_h,
    v_l,
    key_heads,
    rows,
    keys,
    tiles,
    share,
    share_of_lost,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_T: tl.constexpr,
    LOG2_BLOCK_N: tl.constexpr,
):
    """Write a split's Σ w·v and l = Σ w of every row, w = 2^(β·(x − m)).

    A tile whose Σ w is below 2^limit in every row is left out, its values unread. The sum
    is not known, but bounded: for β ≥ 1 each w = 2^(x − m)·2^((β − 1)·(x − m)) is at most the
    first factor times the tile's largest second one; for β < 1 each is at most the largest.
    """
    stack = tl.program_id(0)
    split = tl.program_id(1)
    r = tl.arange(0, BLOCK_M)
    inside = r < rows
    row = stack.to(tl.int64) * rows + r
    width = tl.arange(0, BLOCK_D)
    v += (stack // key_heads).to(tl.int64) * v_b + (stack % key_heads).to(tl.int64) * v_h
    m = tl.load(tops + row, mask=inside, other=0.0)
    beta = tl.load(betas + row, mask=inside, other=1.0)
    # Below β = 1 all weights grow: what is beside the largest is not known any more.
    limit = tl.load(negligible + row, mask=inside, other=0.0)
    limit = tl.where(beta >= 1, limit, share_of_lost)

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    last = tl.minimum((split + 1) * share, tiles)
    for first in tl.range(split * share, last, BLOCK_T):
        # The tiles that count are found first: a loop over them alone, without a branch, has
        # its loads under way long before their turn.
        candidates = first + tl.arange(0, BLOCK_T)
        tile = row[:, None] * tiles + candidates[None, :]
        known = inside[:, None] & (candidates[None, :] < last)
        top = tl.load(tile_tops + tile, mask=known, other=2 * FAR_BELOW) - m[:, None]
        mass = tl.load(masses + tile, mask=known, other=2 * FAR_BELOW) - m[:, None]
        sharper = mass + (beta[:, None] - 1) * top
        flatter = beta[:, None] * top + LOG2_BLOCK_N
        bound = tl.where(beta[:, None] >= 1, sharper, flatter)
        counts = tl.max(tl.where(bound < limit[:, None], 0, 1), 0)
        counts = tl.where(candidates < last, counts, 0)
        place = tl.where(counts == 1, tl.cumsum(counts, 0) - 1, -1)
        for i in tl.range(0, tl.sum(counts, 0)):
            at = tl.sum(tl.where(place == i, candidates, 0), 0)
            columns = at * BLOCK_N + tl.arange(0, BLOCK_N)
            x = tl.load(
                logits + row[:, None] * (tiles * BLOCK_N) + columns[None, :],
                mask=inside[:, None],
                other=2 * FAR_BELOW,
            )
            values_tile = tl.load(
                v + columns[:, None].to(tl.int64) * v_l + width[None, :],
                mask=(columns[:, None] < keys) & (width[None, :] < WIDTH),
                other=0.0,
            )
            w = tl.exp2(beta[:, None] * (x - m[:, None]))
            l += tl.sum(w, 1)
            acc += dot_products(w.to(values_tile.dtype), values_tile)
    part = row * tl.num_programs(1) + split
    tl.store(sums + part, l, mask=inside)
    tl.store(
        parts + part[:, None] * WIDTH + width[None, :],
        acc,
        mask=inside[:, None] & (width[None, :] < WIDTH),
    )


@triton.jit(do_not_specialize=["splits"])
def _combine_kernel(
    parts,
    sums,
    out,
    splits,
    WIDTH: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write a row's Σ w·v / Σ w over its splits, zeros where it sees nothing."""
    row = tl.program_id(0).to(tl.int64)
    width = tl.arange(0, BLOCK_D)
    acc = tl.zeros([BLOCK_D], tl.float32)
    l = tl.zeros([BLOCK_S], tl.float32)
    for first in tl.range(0, splits, BLOCK_S):
        split = first + tl.arange(0, BLOCK_S)
        part = row * splits + split
        l += tl.load(sums + part, mask=split < splits, other=0.0)
        tile = tl.load(
            parts + part[:, None] * WIDTH + width[None, :],
            mask=(split[:, None] < splits) & (width[None, :] < WIDTH),
            other=0.0,
        )
        acc += tl.sum(tile, 0)
    total = tl.sum(l, 0)
    mean = tl.where(total == 0, 0.0, acc / tl.where(total == 0, 1.0, total))
    tl.store(out + row * WIDTH + width, mean.to(out.dtype.element_ty), mask=width < WIDTH)


_logits, _choose = Launcher(_logits_kernel), Launcher(_choose_kernel)
_values, _combine = Launcher(_values_kernel), Launcher(_combine_kernel)


def decode(
    scores: Scores,
    value: Tensor,
    polynomial: dict[str, Any] | None,
    choose: Callable[[Tensor, Tensor, Tensor], Tensor],
    lost: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the output and every row's maximum, log-sum-exp and entropy.

    β is the polynomial of the entropy; without one, it is what `choose` makes of the three
    statistics, in float32 with one entry a row.
    """
    query, key, value = (
        x if x.stride(-1) == 1 else x.contiguous() for x in (scores.query, scores.key, value)
    )
    batch, heads, queries = scores.shape
    _, key_heads, keys, width = key.shape
    value_width = value.shape[-1]
    stacks, group = batch * key_heads, heads // key_heads
    rows = group * queries
    sizes = _sizes(query, max(width, value_width), rows)
    tiles = ceil_div(keys, sizes["BLOCK_N"])
    share = ceil_div(tiles, _most_splits(stacks, tiles, query.device))
    splits = ceil_div(tiles, share)

    share_of_lost = math.log2(lost / tiles) if lost / tiles else -math.inf
    total = stacks * rows
    logits, tile_tops, masses, sums, tops, betas, negligible, parts, part_sums = _workspace(
        query,
        total * tiles * sizes["BLOCK_N"],
        total * tiles,
        total * tiles,
        3 * total * splits,
        total,
        total,
        total,
        total * splits * value_width,
        total * splits,
    )
    # Apart from the workspace, which the caller need not keep with them.
    maximum, lse, entropy = torch.empty(
        (3, batch, heads, queries), dtype=torch.float32, device=query.device
    )
    out = torch.empty((batch, heads, queries, value_width), dtype=value.dtype, device=value.device)
    mask = query  # in the place of one, unread
    if scores.mask is not None:
        mask = scores.mask.expand(batch, heads, queries, keys).view(torch.uint8)

    # Triton launches on the current device, which need not be the tensors'.
    with torch.cuda.device_of(query):
        _logits(
            (stacks, splits),
            (query, key, mask, logits, tile_tops, masses, sums),
            (
                *query.stride()[:3],
                *key.stride()[:3],
                *mask.stride(),
                key_heads,
                queries,
                keys,
                tiles,
                share,
                scores.window or 0,
                scores.scale,
                scores.softcap or 1.0,
            ),
            GROUP=group,
            WIDTH=width,
            CAUSAL=scores.is_causal and queries > 1,
            WINDOW=scores.window is not None,
            SOFTCAP=scores.softcap is not None,
            MASK=0 if scores.mask is None else 2,
            BLOCK_D=_at_least_16(width),
            **sizes,
        )
        chooses = NO_POLYNOMIAL if polynomial is None else polynomial
        _choose(
            (total, 1),
            (sums, maximum, lse, entropy, tops, betas, negligible),
            (splits, lost, share_of_lost, *(chooses[n] for n in ("threshold", "minimum", "end"))),
            COEFFICIENTS=chooses["COEFFICIENTS"],
            DEGREE=chooses["DEGREE"],
            POLYNOMIAL=polynomial is not None,
            BLOCK_S=MOST_SPLITS,
        )
        if polynomial is None:
            betas = choose(maximum, lse, entropy)
        _values(
            (stacks, splits),
            (value, logits, tile_tops, masses, tops, betas, negligible, parts, part_sums),
            (*value.stride()[:3], key_heads, rows, keys, tiles, share, share_of_lost),
            WIDTH=value_width,
            BLOCK_D=_at_least_16(value_width),
            BLOCK_T=32,
            LOG2_BLOCK_N=sizes["BLOCK_N"].bit_length() - 1,
            **sizes,
        )
        _combine(
            (total, 1),
            (parts, part_sums, out),
            (splits,),
            WIDTH=value_width,
            BLOCK_S=16,
            BLOCK_D=_at_least_16(value_width),
        )
    return out, maximum, lse, entropy


def _workspace(like: Tensor, *sizes: int) -> tuple[Tensor, ...]:
    """Return flat float32 tensors of at least these sizes, from one allocation, 16-byte aligned."""
    aligned = [ceil_div(size, 4) * 4 for size in sizes]
    whole = torch.empty(sum(aligned), dtype=torch.float32, device=like.device)
    return torch.split(whole, aligned)


def _sizes(query: Tensor, width: int, rows: int) -> dict[str, int]:
    """Return the largest tiles, up to 32 KiB of keys, that an H200 keeps in its registers."""
    block_m = max(16, power_of_2(rows))
    if query.dtype == torch.float32:
        return {"BLOCK_M": block_m, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
    block_n, warps = (128, 4) if block_m == 16 else (64, 8)
    if width > 128:
        block_n //= 2
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": warps, "num_stages": 3}


def _most_splits(stacks: int, tiles: int, device: torch.device) -> int:
    """Return into how many splits each stack's tiles go to fill the device, but no more."""
    if device.type != "cuda":
        return min(INTERPRETED_SPLITS, tiles)
    programs = PROGRAMS_PER_PROCESSOR * processors(device)
    return min(max(1, programs // stacks), tiles, MOST_SPLITS)


def _at_least_16(width: int) -> int:
    return max(16, power_of_2(width))
