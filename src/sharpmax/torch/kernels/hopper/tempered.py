"""Attention at a given β per row, whose maximum the statistics told.

With the maximum m known, the weights are 2^(β·(x − m)) at once: no running maximum, and nothing
to rescale. That is what makes it faster than ordinary attention, β·q included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
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
    store_rows,
    tiles_of,
)
from sharpmax.torch.kernels.launch import Launcher
from sharpmax.torch.kernels.rounding import ceil_div
from sharpmax.torch.kernels.tile import LN_2, LOG2_E

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.torch.scores import Scores

STAGES = 2


@gluon.jit
def _copy(q, k, v, memory, work, GROUP: gl.constexpr, CAUSAL: gl.constexpr, STAGES: gl.constexpr):
    q_tiles, k_tiles, v_tiles, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    _, _, _, _, planes, heads, queries, keys, _, _ = work
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
                copy_columns(v, v_tiles, v_full, v_empty, batch, head // GROUP, first, step, STAGES)
                step += 1


@gluon.jit
def _compute(memory, work, WARPGROUP: gl.constexpr, CAUSAL: gl.constexpr, STAGES: gl.constexpr):
    q_tiles, k_tiles, v_tiles, q_full, q_empty, k_full, k_empty, v_full, v_empty = memory
    maximum, beta, out, lse, planes, _, queries, keys, width, scale = work
    block: gl.constexpr = v_tiles.shape[4]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, block, 16])
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
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
            at = plane.to(gl.int64) * queries + rows
            inside = rows < queries
            row_beta = gl.load(beta + at, mask=inside, other=1.0)
            row_max = gl.load(maximum + at, mask=inside, other=0.0)
            row_max = gl.where(row_max == float("-inf"), 0.0, row_max)
            factor = gl.expand_dims(row_beta * scale, 1)
            level = gl.expand_dims(row_beta * row_max * LOG2_E, 1)
            l = gl.full([ROWS], 0.0, gl.float32, row_layout)
            acc = gl.full([ROWS, block], 0.0, gl.float32, out_layout)
            q_tile = copied_rows(q_tiles, q_full, turn, WARPGROUP)
            for i in range(tiles):
                k_tile = copied(k_tiles, k_full, step, STAGES)
                x = warpgroup_mma(q_tile, k_tile.permute((1, 0)), zeros, use_acc=False)
                mbarrier.arrive(k_empty.index(step % STAGES))
                w = gl.exp2(x * factor - level)
                if i >= whole:
                    visible = is_visible(rows, i * COLUMNS, queries, keys, layout, CAUSAL)
                    w = gl.where(visible, w, 0.0)
                l += gl.sum(w, 1)
                weights = gl.convert_layout(w.to(v_tiles.dtype), weight_layout)
                v_tile = copied(v_tiles, v_full, step, STAGES)
                acc = warpgroup_mma(weights, v_tile, acc)
                mbarrier.arrive(v_empty.index(step % STAGES))
                step += 1
            mbarrier.arrive(q_empty.index(turn % 2))
            nothing = l == 0
            l = gl.where(nothing, 1.0, l)
            row_lse = gl.where(nothing, float("-inf"), row_beta * row_max + gl.log2(l) * LN_2)
            gl.store(lse + at, row_lse, mask=inside)
            l = gl.convert_layout(l, gl.SliceLayout(1, out_layout))
            store_rows(out, acc / gl.expand_dims(l, 1), plane, first, queries, width)


@gluon.jit
def tempered_kernel(
    q,
    k,
    v,
    maximum,
    beta,
    out,
    lse,
    planes,
    heads,
    queries,
    keys,
    width,
    scale,
    GROUP: gl.constexpr,
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
    REGISTERS: gl.constexpr,
    num_warps: gl.constexpr,
):
    q_tiles = gl.allocate_shared_memory(q.dtype, [2 * WARPGROUPS] + q.block_type.shape, q.layout)
    k_tiles = gl.allocate_shared_memory(k.dtype, [STAGES] + k.block_type.shape, k.layout)
    v_tiles = gl.allocate_shared_memory(v.dtype, [STAGES] + v.block_type.shape, v.layout)
    q_full = barriers(2, 1)
    q_empty = barriers(2, WARPGROUPS)
    k_full = barriers(STAGES, 1)
    k_empty = barriers(STAGES, WARPGROUPS)
    v_full = barriers(STAGES, 1)
    v_empty = barriers(STAGES, WARPGROUPS)
    fence_async_shared()
    memory = (q_tiles, k_tiles, v_tiles, q_full, q_empty, k_full, k_empty, v_full, v_empty)
    work = (maximum, beta, out, lse, planes, heads, queries, keys, width, scale)
    gl.warp_specialize(
        [
            (_compute, (memory, work, 0, CAUSAL, STAGES)),
            (_compute, (memory, work, 1, CAUSAL, STAGES)),
            (_compute, (memory, work, 2, CAUSAL, STAGES)),
            (_copy, (q, k, v, memory, work, GROUP, CAUSAL, STAGES)),
        ],
        [4, 4, 1],
        [REGISTERS, REGISTERS, 24],
    )


_tempered = Launcher(tempered_kernel)


def tempered(scores: Scores, value: Tensor, beta: Tensor, maximum: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax(β·logits)·value and the log-sum-exp of β·logits."""
    batch, heads, queries = scores.shape
    width = value.shape[3]
    out = torch.empty((*scores.shape, width), dtype=value.dtype, device=value.device)
    lse = torch.empty(scores.shape, dtype=torch.float32, device=value.device)
    planes = batch * heads
    items = planes * ceil_div(queries, TILE_ROWS)
    query = tiles_of(scores.query, ROWS.value)
    key, values = (tiles_of(tensor, TILE_COLUMNS) for tensor in (scores.key, value))
    rows = maximum.contiguous(), beta.to(torch.float32).contiguous()
    _tempered(
        programs(items, value.device),
        (query, key, values, *rows, out, lse),
        (planes, heads, queries, scores.key.shape[2], width, base_2(scores.scale)),
        GROUP=heads // scores.key.shape[1],
        CAUSAL=scores.is_causal,
        STAGES=STAGES,
        REGISTERS=REGISTERS,
        num_warps=4,
    )
    return out, lse
