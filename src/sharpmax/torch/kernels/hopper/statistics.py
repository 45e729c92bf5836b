"""The row statistics in one pass over the keys: m, l and u as in the Triton kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
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
    copy_columns,
    copy_rows,
    is_visible,
    keys_of_rows,
    one_barrier,
    tiles_of,
)
from sharpmax.torch.kernels.tile import FAR_BELOW, LN_2

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.torch.scores import Scores

STAGES = 4


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
def _copy(q, k, memory, batch, head, key_head, start, tiles, STAGES: gl.constexpr):
    q_tiles, k_tiles, q_full, k_full, k_empty, _ = memory
    copy_rows(q, q_tiles, q_full, batch, head, start)
    for i in range(tiles):
        copy_columns(k, k_tiles, k_full, k_empty, batch, key_head, i * COLUMNS, i, STAGES)


@gluon.jit
def _compute(memory, work, WARPGROUP: gl.constexpr, CAUSAL: gl.constexpr, STAGES: gl.constexpr):
    q_tiles, k_tiles, q_full, k_full, k_empty, turns = memory
    maximum, lse, entropy, plane, start, tiles, queries, keys, scale = work
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
    shape: gl.constexpr = q_tiles.shape
    first = start + ROWS * WARPGROUP
    rows = first + gl.arange(0, ROWS, layout=row_layout)
    q_tile = q_tiles.index(WARPGROUP).reshape([shape[3], shape[4]])
    whole, seen = keys_of_rows(first, queries, keys, CAUSAL)
    m = gl.full([ROWS], FAR_BELOW, gl.float32, row_layout)
    l = gl.full([ROWS], 0.0, gl.float32, row_layout)
    u = gl.full([ROWS], 0.0, gl.float32, row_layout)
    zeros = gl.full([ROWS, COLUMNS], 0.0, gl.float32, layout)
    mbarrier.wait(q_full, 0)
    for i in range(whole):
        k_tile = copied(k_tiles, k_full, i, STAGES).permute((1, 0))
        # The warpgroups take turns at the tensor cores, so that one multiplies while the
        # others are at their exponentials; the next may begin when half of this is done.
        _await_turn(turns, i, WARPGROUP)
        half: gl.constexpr = shape[4] // 2
        x = warpgroup_mma(
            q_tile.slice(0, half, dim=1),
            k_tile.slice(0, half, dim=0),
            zeros,
            use_acc=False,
            is_async=True,
        )
        x = warpgroup_mma(
            q_tile.slice(half, half, dim=1), k_tile.slice(half, half, dim=0), x, is_async=True
        )
        x = warpgroup_mma_wait(1, deps=[x])
        mbarrier.arrive(turns.index((WARPGROUP + 1) % WARPGROUPS))
        x = warpgroup_mma_wait(0, deps=[x])
        mbarrier.arrive(k_empty.index(i % STAGES))
        m, l, u = _joined(m, l, u, x, scale)
    for i in range(whole, tiles):
        k_tile = copied(k_tiles, k_full, i, STAGES)
        _await_turn(turns, i, WARPGROUP)
        mbarrier.arrive(turns.index((WARPGROUP + 1) % WARPGROUPS))
        if i * COLUMNS < seen:
            x = warpgroup_mma(q_tile, k_tile.permute((1, 0)), zeros, use_acc=False)
            visible = is_visible(rows, i * COLUMNS, queries, keys, layout, CAUSAL)
            m, l, u = _joined(m, l, u, gl.where(visible, x * scale, 2 * FAR_BELOW), 1.0)
        mbarrier.arrive(k_empty.index(i % STAGES))
    nothing = l == 0
    l = gl.where(nothing, 1.0, l)
    at = plane.to(gl.int64) * queries + rows
    inside = rows < queries
    minus_infinity = float("-inf")
    gl.store(maximum + at, gl.where(nothing, minus_infinity, m * LN_2), mask=inside)
    gl.store(lse + at, gl.where(nothing, minus_infinity, (m + gl.log2(l)) * LN_2), mask=inside)
    gl.store(entropy + at, (gl.log2(l) - u / l) * LN_2, mask=inside)


@gluon.jit
def statistics_kernel(
    q,
    k,
    maximum,
    lse,
    entropy,
    heads,
    queries,
    keys,
    scale,
    GROUP: gl.constexpr,
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
    REGISTERS: gl.constexpr,
    num_warps: gl.constexpr,
):
    # The last rows see the most keys: they go first.
    start = (gl.num_programs(0) - 1 - gl.program_id(0)) * WARPGROUPS * ROWS
    plane = gl.program_id(1)
    batch = plane // heads
    head = plane % heads
    last = start + (WARPGROUPS - 1) * ROWS
    _, seen = keys_of_rows(last, queries, keys, CAUSAL)
    tiles = gl.cdiv(seen, COLUMNS)
    q_tiles = gl.allocate_shared_memory(q.dtype, [WARPGROUPS] + q.block_type.shape, q.layout)
    k_tiles = gl.allocate_shared_memory(k.dtype, [STAGES] + k.block_type.shape, k.layout)
    q_full = one_barrier()
    k_full = barriers(STAGES, 1)
    k_empty = barriers(STAGES, WARPGROUPS)
    turns = barriers(WARPGROUPS, 1)
    fence_async_shared()
    memory = (q_tiles, k_tiles, q_full, k_full, k_empty, turns)
    work = (maximum, lse, entropy, plane, start, tiles, queries, keys, scale)
    gl.warp_specialize(
        [
            (_compute, (memory, work, 0, CAUSAL, STAGES)),
            (_compute, (memory, work, 1, CAUSAL, STAGES)),
            (_compute, (memory, work, 2, CAUSAL, STAGES)),
            (_copy, (q, k, memory, batch, head, head // GROUP, start, tiles, STAGES)),
        ],
        [4, 4, 1],
        [REGISTERS, REGISTERS, 24],
    )


def statistics(scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
    """Return the maximum, the log-sum-exp and the entropy of every row."""
    maximum, lse, entropy = (
        torch.empty(scores.shape, dtype=torch.float32, device=scores.query.device) for _ in range(3)
    )
    batch, heads, queries = scores.shape
    statistics_kernel[(triton.cdiv(queries, TILE_ROWS), batch * heads)](
        tiles_of(scores.query, ROWS.value),
        tiles_of(scores.key, TILE_COLUMNS),
        maximum,
        lse,
        entropy,
        heads,
        queries,
        scores.key.shape[2],
        base_2(scores.scale),
        GROUP=heads // scores.key.shape[1],
        CAUSAL=scores.is_causal,
        STAGES=STAGES,
        REGISTERS=REGISTERS,
        num_warps=4,
    )
    return maximum, lse, entropy
