"""The row statistics in one pass over the keys: m, l and u as in the Triton kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from sharpmax.torch.kernels.hopper.stream import (
    COLUMNS,
    REGISTERS,
    ROWS,
    TILE_COLUMNS,
    TILE_ROWS,
    WARPGROUPS,
    barriers,
    base_2,
    copied,
    copied_rows,
    copy_columns,
    copy_rows,
    is_visible,
    item_of,
    keys_of_rows,
    programs,
    row_item,
    tiles_of,
)
from sharpmax.torch.kernels.launch import Launcher
from sharpmax.torch.kernels.rounding import ceil_div
from sharpmax.torch.kernels.tile import FAR_BELOW, LN_2

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.torch.scores import Scores

STAGES = 3


@gluon.jit
def _joined(m, l, u, x, scale):
    """Return m, l and u with a tile of logits scale·x added."""
    new = gl.maximum(m, gl.max(x, 1) * scale)
    z = x * scale - gl.expand_dims(new, 1)
    p = gl.exp2(z)
    fade = gl.exp2(m - new)
    u = fade * (u + (m - new) * l) + gl.sum(p * z, 1)
    l = fade * l + gl.sum(p, 1)
    return new, l, u


@gluon.jit
def _await_turn(turns, i, WARPGROUP: gl.constexpr):
    """Wait until the warpgroup before has passed its turn at tile i, or the last at i − 1."""
    mbarrier.wait(turns.index(WARPGROUP), (i & 1) ^ (1 if WARPGROUP == 0 else 0))


@gluon.jit
def _copy(q, k, memory, work, GROUP: gl.constexpr, CAUSAL: gl.constexpr, STAGES: gl.constexpr):
    q_tiles, k_tiles, q_full, q_empty, k_full, k_empty, _ = memory
    _, _, _, planes, heads, queries, keys, _, _ = work
    items = planes * gl.cdiv(queries, WARPGROUPS * ROWS)
    step = 0
    for turn in range(gl.cdiv(items, gl.num_programs(0))):
        item = item_of(turn, items)
        if item < items:
            plane, start, tiles = row_item(item, planes, queries, keys, CAUSAL)
            batch = plane // heads
            head = plane % heads
            copy_rows(q, q_tiles, q_full, q_empty, batch, head, start, turn)
            for i in range(tiles):
                first = i * COLUMNS
                copy_columns(k, k_tiles, k_full, k_empty, batch, head // GROUP, first, step, STAGES)
                step += 1


@gluon.jit
def _compute(memory, work, WARPGROUP: gl.constexpr, CAUSAL: gl.constexpr, STAGES: gl.constexpr):
    q_tiles, k_tiles, q_full, q_empty, k_full, k_empty, turns = memory
    maximum, lse, entropy, planes, _, queries, keys, scale, below = work
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
    half: gl.constexpr = q_tiles.shape[4] // 2
    zeros = gl.full([ROWS, COLUMNS], 0.0, gl.float32, layout)
    items = planes * gl.cdiv(queries, WARPGROUPS * ROWS)
    step = 0
    for turn in range(gl.cdiv(items, gl.num_programs(0))):
        item = item_of(turn, items)
        if item < items:
            plane, start, tiles = row_item(item, planes, queries, keys, CAUSAL)
            first = start + ROWS * WARPGROUP
            rows = first + gl.arange(0, ROWS, layout=row_layout)
            whole, _ = keys_of_rows(first, queries, keys, CAUSAL)
            m = gl.full([ROWS], FAR_BELOW, gl.float32, row_layout)
            l = gl.full([ROWS], 0.0, gl.float32, row_layout)
            u = gl.full([ROWS], 0.0, gl.float32, row_layout)
            q_tile = copied_rows(q_tiles, q_full, turn, WARPGROUP)
            for i in range(tiles):
                k_tile = copied(k_tiles, k_full, step, STAGES).permute((1, 0))
                # The warpgroups take turns at the tensor cores, so that one multiplies while the
                # others are at their exponentials; the next may begin when half of this is done.
                _await_turn(turns, step, WARPGROUP)
                x = warpgroup_mma(
                    q_tile.slice(0, half, dim=1),
                    k_tile.slice(0, half, dim=0),
                    zeros,
                    use_acc=False,
                    is_async=True,
                )
                x = warpgroup_mma(
                    q_tile.slice(half, half, dim=1),
                    k_tile.slice(half, half, dim=0),
                    x,
                    is_async=True,
                )
                x = warpgroup_mma_wait(1, deps=[x])
                mbarrier.arrive(turns.index((WARPGROUP + 1) % WARPGROUPS))
                x = warpgroup_mma_wait(0, deps=[x])
                mbarrier.arrive(k_empty.index(step % STAGES))
                if i >= whole:
                    visible = is_visible(rows, i * COLUMNS, queries, keys, layout, CAUSAL)
                    x = gl.where(visible, x, below)
                m, l, u = _joined(m, l, u, x, scale)
                step += 1
            mbarrier.arrive(q_empty.index(turn % 2))
            nothing = l == 0
            l = gl.where(nothing, 1.0, l)
            at = plane.to(gl.int64) * queries + rows
            inside = rows < queries
            nowhere = float("-inf")
            gl.store(maximum + at, gl.where(nothing, nowhere, m * LN_2), mask=inside)
            gl.store(lse + at, gl.where(nothing, nowhere, (m + gl.log2(l)) * LN_2), mask=inside)
            h = (gl.log2(l) - u / l) * LN_2
            gl.store(entropy + at, gl.where(h < 0, 0.0, h), mask=inside)


@gluon.jit
def statistics_kernel(
    q,
    k,
    maximum,
    lse,
    entropy,
    planes,
    heads,
    queries,
    keys,
    scale,
    below,
    GROUP: gl.constexpr,
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
    REGISTERS: gl.constexpr,
    num_warps: gl.constexpr,
):
    q_tiles = gl.allocate_shared_memory(q.dtype, [2 * WARPGROUPS] + q.block_type.shape, q.layout)
    k_tiles = gl.allocate_shared_memory(k.dtype, [STAGES] + k.block_type.shape, k.layout)
    q_full = barriers(2, 1)
    q_empty = barriers(2, WARPGROUPS)
    k_full = barriers(STAGES, 1)
    k_empty = barriers(STAGES, WARPGROUPS)
    turns = barriers(WARPGROUPS, 1)
    fence_async_shared()
    memory = (q_tiles, k_tiles, q_full, q_empty, k_full, k_empty, turns)
    work = (maximum, lse, entropy, planes, heads, queries, keys, scale, below)
    gl.warp_specialize(
        [
            (_compute, (memory, work, 0, CAUSAL, STAGES)),
            (_compute, (memory, work, 1, CAUSAL, STAGES)),
            (_compute, (memory, work, 2, CAUSAL, STAGES)),
            (_copy, (q, k, memory, work, GROUP, CAUSAL, STAGES)),
        ],
        [4, 4, 1],
        [REGISTERS, REGISTERS, 24],
    )


_statistics = Launcher(statistics_kernel)


def statistics(scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
    """Return the maximum, the log-sum-exp and the entropy of every row."""
    maximum, lse, entropy = (
        torch.empty(scores.shape, dtype=torch.float32, device=scores.query.device) for _ in range(3)
    )
    batch, heads, queries = scores.shape
    planes = batch * heads
    items = planes * ceil_div(queries, TILE_ROWS)
    scale = base_2(scores.scale)
    below = 2 * FAR_BELOW.value / scale  # what the scale makes of it is far below
    tiles = tiles_of(scores.query, ROWS.value), tiles_of(scores.key, TILE_COLUMNS)
    _statistics(
        programs(items, scores.query.device),
        (*tiles, maximum, lse, entropy),
        (planes, heads, queries, scores.key.shape[2], scale, below),
        GROUP=heads // scores.key.shape[1],
        CAUSAL=scores.is_causal,
        STAGES=STAGES,
        REGISTERS=REGISTERS,
        num_warps=4,
    )
    return maximum, lse, entropy
