"""The Triton kernels of the row statistics.

Forward: a program holds a tile of queries and streams over the keys that they see, keeping for
every row the maximum m, l = Σ 2^(x−m) and u = Σ 2^(x−m)·(x−m), where x is the logit in base 2.
On a new maximum m′ they become u ← 2^(m−m′)·(u + (m−m′)·l), l ← 2^(m−m′)·l.

Backward: ∂L/∂s = p·(g_lse − g_H·(s − mean)), made again tile by tile from lse and H; one kernel
sums it over the keys for the queries, the other over the queries for the keys.

Tiles that every query sees whole are worked through without masking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.torch.scores import Scores

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


FAR_BELOW = tl.constexpr(-1e30)
"""Below every logit, and finite: its exponential is 0, and so is that times itself."""


@triton.jit
def _dots(q, k_transposed):
    return tl.dot(q, k_transposed, input_precision="tf32x3")


@triton.jit
def _capped(dots, scale, softcap):
    """Return softcap·tanh(scale·dots/softcap), by tanh|y| = (1 − e)/(1 + e), e = exp(−2|y|)."""
    e = tl.exp2(tl.abs(dots) * (-2 * LOG2_E * scale / softcap))
    tanh = (1 - e) / (1 + e)
    return softcap * tl.where(dots < 0, -tanh, tanh)


@triton.jit
def _visible(
    rows,
    columns,
    queries,
    keys,
    window,
    mask,
    mask_q,
    mask_k,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    MASK: tl.constexpr,
):
    """Tell for a tile which keys are seen; `rows` and `columns` broadcast to the tile."""
    visible = (columns < keys) & (rows < queries)
    distance = rows + (keys - queries) - columns
    if CAUSAL:
        visible &= distance >= 0
    if WINDOW:
        visible &= (distance < window) & (distance > -window)
    if MASK:
        at = mask + rows.to(tl.int64) * mask_q + columns.to(tl.int64) * mask_k
        visible &= tl.load(at, mask=visible, other=0) != 0
    return visible


@triton.jit
def _keys_seen(
    start,
    queries,
    keys,
    window,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Return the range of keys that any query of the tile at `start` can see."""
    offset = keys - queries
    low = 0
    high = keys
    if CAUSAL:
        high = tl.maximum(tl.minimum(keys, start + BLOCK_M + offset), 0)
    if WINDOW:
        low = tl.maximum(start + offset - window + 1, 0) // BLOCK_N * BLOCK_N
        high = tl.minimum(high, tl.maximum(start + BLOCK_M - 1 + offset + window, 0))
    return low, high


@triton.jit
def _joined(m, l, u, new, z):
    """Return m, l and u with a tile of logits z, below their new maximum, added."""
    p = tl.exp2(z)
    fade = tl.exp2(m - new)
    u = fade * (u + (m - new) * l) + tl.sum(p * z, 1)
    l = fade * l + tl.sum(p, 1)
    return new, l, u


@triton.jit
def _forward_kernel(
    q,
    k,
    mask,
    maximum,
    lse,
    entropy,
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
    heads,
    queries,
    keys,
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
    # The last tiles see the most keys: they go first.
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    batch = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    offset = keys - queries
    q += batch.to(tl.int64) * q_b + head.to(tl.int64) * q_h
    k += batch.to(tl.int64) * k_b + (head // GROUP).to(tl.int64) * k_h
    mask += batch.to(tl.int64) * mask_b + head.to(tl.int64) * mask_h
    rows = start + tl.arange(0, BLOCK_M)
    width = tl.arange(0, BLOCK_D)
    tile = tl.load(
        q + rows[:, None].to(tl.int64) * q_l + width[None, :],
        mask=(rows[:, None] < queries) & (width[None, :] < WIDTH),
        other=0.0,
    )

    low, high = _keys_seen(start, queries, keys, window, CAUSAL, WINDOW, BLOCK_M, BLOCK_N)
    # Up to here every query of the tile sees every key.
    whole = low
    if not (WINDOW or MASK):
        whole = (tl.minimum(keys, start + offset + 1) if CAUSAL else keys) // BLOCK_N * BLOCK_N
        whole = tl.maximum(whole, 0)

    m = tl.full([BLOCK_M], FAR_BELOW, tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    u = tl.zeros([BLOCK_M], tl.float32)
    at = k + (low + tl.arange(0, BLOCK_N)).to(tl.int64)[None, :] * k_l + width[:, None]
    for _first in tl.range(low, whole, BLOCK_N):
        if WIDTH == BLOCK_D:
            keys_tile = tl.load(at)
        else:
            keys_tile = tl.load(at, mask=width[:, None] < WIDTH, other=0.0)
        at += BLOCK_N * k_l
        x = _dots(tile, keys_tile)
        if SOFTCAP:
            x = _capped(x, scale, softcap) * LOG2_E
            new = tl.maximum(m, tl.max(x, 1))
            z = x - new[:, None]
        else:
            new = tl.maximum(m, tl.max(x, 1) * (scale * LOG2_E))
            z = x * (scale * LOG2_E) - new[:, None]
        m, l, u = _joined(m, l, u, new, z)
    for first in tl.range(whole, high, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        keys_tile = tl.load(
            k + columns[:, None].to(tl.int64) * k_l + width[None, :],
            mask=(columns[:, None] < keys) & (width[None, :] < WIDTH),
            other=0.0,
        )
        x = _dots(tile, tl.trans(keys_tile))
        if SOFTCAP:
            x = _capped(x, scale, softcap) * LOG2_E
        else:
            x = x * (scale * LOG2_E)
        visible = _visible(
            rows[:, None],
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
        new = tl.maximum(m, tl.max(x, 1))
        z = x - new[:, None]
        m, l, u = _joined(m, l, u, new, z)

    nothing = l == 0
    l = tl.where(nothing, 1.0, l)
    minus_infinity = float("-inf")
    out = tl.program_id(1).to(tl.int64) * queries + rows
    inside = rows < queries
    tl.store(maximum + out, tl.where(nothing, minus_infinity, m * LN_2), mask=inside)
    tl.store(lse + out, tl.where(nothing, minus_infinity, (m + tl.log2(l)) * LN_2), mask=inside)
    tl.store(entropy + out, (tl.log2(l) - u / l) * LN_2, mask=inside)


@triton.jit
def _grad_logits(
    dots, lse, mean, grad_lse, grad_entropy, visible, scale, softcap, SOFTCAP: tl.constexpr
):
    """Return the gradient by scale·dots: p·(g_lse − g_H·(s − mean)), through the softcap."""
    s = _capped(dots, scale, softcap) if SOFTCAP else dots * scale
    p = tl.where(visible, tl.exp2((s - lse) * LOG2_E), 0.0)
    grad = p * (grad_lse - grad_entropy * (s - mean))
    if SOFTCAP:
        grad *= 1 - (s / softcap) * (s / softcap)
    return grad


@triton.jit
def _row_values(lse, entropy, grad_lse, grad_entropy, at, inside):
    """Load a row's lse, mean and gradients; a row that sees nothing gets weights of 0."""
    row_lse = tl.load(lse + at, mask=inside, other=float("-inf"))
    row_entropy = tl.load(entropy + at, mask=inside, other=0.0)
    row_grad_lse = tl.load(grad_lse + at, mask=inside, other=0.0)
    row_grad_entropy = tl.load(grad_entropy + at, mask=inside, other=0.0)
    nothing = row_lse == float("-inf")
    mean = tl.where(nothing, 0.0, row_lse - row_entropy)
    return tl.where(nothing, -FAR_BELOW, row_lse), mean, row_grad_lse, row_grad_entropy


@triton.jit
def _grad_query_kernel(
    q,
    k,
    mask,
    lse,
    entropy,
    grad_lse,
    grad_entropy,
    grad_q,
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
    heads,
    queries,
    keys,
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
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    batch = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    q += batch.to(tl.int64) * q_b + head.to(tl.int64) * q_h
    k += batch.to(tl.int64) * k_b + (head // GROUP).to(tl.int64) * k_h
    mask += batch.to(tl.int64) * mask_b + head.to(tl.int64) * mask_h
    rows = start + tl.arange(0, BLOCK_M)
    width = tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < queries) & (width[None, :] < WIDTH)
    tile = tl.load(q + rows[:, None].to(tl.int64) * q_l + width[None, :], mask=inside, other=0.0)
    out = tl.program_id(1).to(tl.int64) * queries + rows
    row_lse, mean, row_grad_lse, row_grad_entropy = _row_values(
        lse, entropy, grad_lse, grad_entropy, out, rows < queries
    )
    low, high = _keys_seen(start, queries, keys, window, CAUSAL, WINDOW, BLOCK_M, BLOCK_N)
    grad = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for first in tl.range(low, high, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        keys_tile = tl.load(
            k + columns[:, None].to(tl.int64) * k_l + width[None, :],
            mask=(columns[:, None] < keys) & (width[None, :] < WIDTH),
            other=0.0,
        )
        dots = _dots(tile, tl.trans(keys_tile))
        visible = _visible(
            rows[:, None],
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
        grad_logits = _grad_logits(
            dots,
            row_lse[:, None],
            mean[:, None],
            row_grad_lse[:, None],
            row_grad_entropy[:, None],
            visible,
            scale,
            softcap,
            SOFTCAP,
        )
        grad += tl.dot(grad_logits.to(keys_tile.dtype), keys_tile, input_precision="tf32x3")
    at = grad_q + out[:, None] * WIDTH + width[None, :]
    tl.store(at, (grad * scale).to(grad_q.dtype.element_ty), mask=inside)


@triton.jit
def _grad_key_kernel(
    q,
    k,
    mask,
    lse,
    entropy,
    grad_lse,
    grad_entropy,
    grad_k,
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
    heads,
    queries,
    keys,
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
    start = tl.program_id(0) * BLOCK_N
    key_heads = heads // GROUP
    batch = tl.program_id(1) // key_heads
    key_head = tl.program_id(1) % key_heads
    offset = keys - queries
    columns = start + tl.arange(0, BLOCK_N)
    width = tl.arange(0, BLOCK_D)
    inside = (columns[:, None] < keys) & (width[None, :] < WIDTH)
    k += batch.to(tl.int64) * k_b + key_head.to(tl.int64) * k_h
    tile = tl.load(k + columns[:, None].to(tl.int64) * k_l + width[None, :], mask=inside, other=0.0)
    low = 0
    high = queries
    if CAUSAL:
        low = tl.maximum(start - offset, 0) // BLOCK_M * BLOCK_M
    if WINDOW:
        low = tl.maximum(low, tl.maximum(start - offset - window + 1, 0) // BLOCK_M * BLOCK_M)
        high = tl.minimum(high, tl.maximum(start + BLOCK_N - 1 - offset + window, 0))
    grad = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for member in tl.static_range(GROUP):
        head = key_head * GROUP + member
        q_head = q + batch.to(tl.int64) * q_b + head.to(tl.int64) * q_h
        mask_head = mask + batch.to(tl.int64) * mask_b + head.to(tl.int64) * mask_h
        for first in tl.range(low, high, BLOCK_M):
            rows = first + tl.arange(0, BLOCK_M)
            queries_tile = tl.load(
                q_head + rows[:, None].to(tl.int64) * q_l + width[None, :],
                mask=(rows[:, None] < queries) & (width[None, :] < WIDTH),
                other=0.0,
            )
            row_lse, mean, row_grad_lse, row_grad_entropy = _row_values(
                lse,
                entropy,
                grad_lse,
                grad_entropy,
                (batch * heads + head).to(tl.int64) * queries + rows,
                rows < queries,
            )
            visible = _visible(
                rows[None, :],
                columns[:, None],
                queries,
                keys,
                window,
                mask_head,
                mask_q,
                mask_k,
                CAUSAL,
                WINDOW,
                MASK,
            )
            grad_logits = _grad_logits(
                _dots(tile, tl.trans(queries_tile)),
                row_lse[None, :],
                mean[None, :],
                row_grad_lse[None, :],
                row_grad_entropy[None, :],
                visible,
                scale,
                softcap,
                SOFTCAP,
            )
            grad += tl.dot(grad_logits.to(tile.dtype), queries_tile, input_precision="tf32x3")
    at = (tl.program_id(1).to(tl.int64) * keys + columns)[:, None] * WIDTH + width[None, :]
    tl.store(grad_k + at, (grad * scale).to(grad_k.dtype.element_ty), mask=inside)


def forward(scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
    """Return the maximum, the log-sum-exp and the entropy of every row."""
    maximum, lse, entropy = (
        torch.empty(scores.shape, dtype=torch.float32, device=scores.query.device) for _ in range(3)
    )
    arguments, settings = _arguments(scores)
    tiles = _forward_tiles(scores)
    batch, heads, queries = scores.shape
    grid = (triton.cdiv(queries, tiles["BLOCK_M"]), batch * heads)
    tensors, numbers = arguments[:3], arguments[3:]
    _forward_kernel[grid](*tensors, maximum, lse, entropy, *numbers, **settings, **tiles)
    return maximum, lse, entropy


def backward(
    scores: Scores, lse: Tensor, entropy: Tensor, grad_lse: Tensor, grad_entropy: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients by the query and the key."""
    query, key = scores.query, scores.key
    grad_query = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    grad_key = torch.empty(key.shape, dtype=key.dtype, device=key.device)
    arguments, settings = _arguments(scores)
    tensors, numbers = arguments[:3], arguments[3:]
    tensors = (*tensors, lse, entropy, grad_lse.contiguous(), grad_entropy.contiguous())
    tiles = _backward_tiles(scores)
    rows = (triton.cdiv(query.shape[2], tiles["BLOCK_M"]), query.shape[0] * query.shape[1])
    _grad_query_kernel[rows](*tensors, grad_query, *numbers, **settings, **tiles)
    columns = (triton.cdiv(key.shape[2], tiles["BLOCK_N"]), key.shape[0] * key.shape[1])
    _grad_key_kernel[columns](*tensors, grad_key, *numbers, **settings, **tiles)
    return grad_query, grad_key


def _arguments(scores: Scores) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what all kernels take: query, key and mask, then numbers; and their settings."""
    query, key = (x if x.stride(-1) == 1 else x.contiguous() for x in (scores.query, scores.key))
    batch, heads, queries = scores.shape
    mask = query.new_zeros((), dtype=torch.uint8) if scores.mask is None else scores.mask
    mask = mask.expand(batch, heads, queries, key.shape[2]).view(torch.uint8)
    width = query.shape[-1]
    arguments = (
        query,
        key,
        mask,
        *query.stride()[:3],
        *key.stride()[:3],
        *mask.stride(),
        heads,
        queries,
        key.shape[2],
        scores.window or 0,
        scores.scale,
        scores.softcap or 1.0,
    )
    settings = {
        "GROUP": heads // key.shape[1],
        "WIDTH": width,
        "CAUSAL": scores.is_causal,
        "WINDOW": scores.window is not None,
        "SOFTCAP": scores.softcap is not None,
        "MASK": scores.mask is not None,
        "BLOCK_D": max(16, triton.next_power_of_2(width)),
    }
    return arguments, settings


def _forward_tiles(scores: Scores) -> dict[str, int]:
    """Return the tile sizes that were fastest on an H200."""
    if scores.query.dtype == torch.float32:
        return _FLOAT32_TILES
    width = scores.query.shape[-1]
    if width <= 64:
        return {"BLOCK_M": 64, "BLOCK_N": 128, "num_warps": 4, "num_stages": 2}
    if width <= 128:
        return {"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 8, "num_stages": 2}
    return {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}


def _backward_tiles(scores: Scores) -> dict[str, int]:
    """Return the tile sizes of both backward kernels, likewise."""
    if scores.query.dtype == torch.float32:
        return _FLOAT32_TILES
    if scores.query.shape[-1] <= 128:
        return {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
    return {"BLOCK_M": 32, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}


_FLOAT32_TILES = {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}
"""Float32 products are split into three of tf32, which takes the room of larger tiles."""
