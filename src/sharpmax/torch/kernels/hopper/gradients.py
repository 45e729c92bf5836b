"""The gradients of the row statistics by the query and by the key.

∂L/∂s = p·(g_lse − g_H·(s − mean)) is made again tile by tile: with logits x in the dot products'
own units it is 2^(scale·x − level)·(a − b·x), where level = lse, a = g_lse + g_H·mean and
b = g_H·scale are one number a query each. One kernel holds queries and streams keys, the other
holds keys and streams queries with their three numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
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
    copy_tile,
    is_visible,
    item_of,
    keys_of_rows,
    programs,
    row_item,
    row_values,
    store_rows,
    tiles_of,
)
from sharpmax.torch.kernels.launch import Launcher
from sharpmax.torch.kernels.rounding import ceil_div
from sharpmax.torch.kernels.tile import FAR_BELOW, LOG2_E

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.torch.scores import Scores

STAGES = 3


@gluon.jit
def _grad_logits(x, scale, level, a, b):
    return gl.exp2(x * scale - level) * (a - b * x)


@gluon.jit
def _copy_keys(q, k, memory, work, GROUP: gl.constexpr, CAUSAL: gl.constexpr, STAGES: gl.constexpr):
    q_tiles, k_tiles, q_full, q_empty, k_full, k_empty = memory
    _, _, planes, heads, queries, keys, _, _, _, _ = work
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
def _compute_grad_query(
    memory, work, WARPGROUP: gl.constexpr, CAUSAL: gl.constexpr, STAGES: gl.constexpr
):
    q_tiles, k_tiles, q_full, q_empty, k_full, k_empty = memory
    values, grad_q, planes, _, queries, keys, width, stride, scale, scale_2 = work
    block: gl.constexpr = q_tiles.shape[4]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, block, 16])
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    zeros = gl.full([ROWS, COLUMNS], 0.0, gl.float32, layout)
    items = planes * gl.cdiv(queries, WARPGROUPS * ROWS)
    step = 0
    for turn in range(gl.cdiv(items, gl.num_programs(0))):
        item = item_of(turn, items)
        if item < items:
            plane, start, tiles = row_item(item, planes, queries, keys, CAUSAL)
            first = start + ROWS * WARPGROUP
            rows = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
            inside = rows < queries
            at = values + plane.to(gl.int64) * 3 * stride + rows
            level = gl.expand_dims(gl.load(at, mask=inside, other=0.0), 1)
            a = gl.expand_dims(gl.load(at + stride, mask=inside, other=0.0), 1)
            b = gl.expand_dims(gl.load(at + 2 * stride, mask=inside, other=0.0), 1)
            whole, _ = keys_of_rows(first, queries, keys, CAUSAL)
            acc = gl.full([ROWS, block], 0.0, gl.float32, out_layout)
            q_tile = copied_rows(q_tiles, q_full, turn, WARPGROUP)
            for i in range(tiles):
                k_tile = copied(k_tiles, k_full, step, STAGES)
                x = warpgroup_mma(q_tile, k_tile.permute((1, 0)), zeros, use_acc=False)
                grad = _grad_logits(x, scale_2, level, a, b)
                if i >= whole:
                    visible = is_visible(rows, i * COLUMNS, queries, keys, layout, CAUSAL)
                    grad = gl.where(visible, grad, 0.0)
                grad = gl.convert_layout(grad.to(q_tiles.dtype), weight_layout)
                acc = warpgroup_mma(grad, k_tile, acc)
                mbarrier.arrive(k_empty.index(step % STAGES))
                step += 1
            mbarrier.arrive(q_empty.index(turn % 2))
            store_rows(grad_q, acc * scale, plane, first, queries, width)


@gluon.jit
def grad_query_kernel(
    q,
    k,
    values,
    grad_q,
    planes,
    heads,
    queries,
    keys,
    width,
    stride,
    scale,
    scale_2,
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
    fence_async_shared()
    memory = (q_tiles, k_tiles, q_full, q_empty, k_full, k_empty)
    work = (values, grad_q, planes, heads, queries, keys, width, stride, scale, scale_2)
    gl.warp_specialize(
        [
            (_compute_grad_query, (memory, work, 0, CAUSAL, STAGES)),
            (_compute_grad_query, (memory, work, 1, CAUSAL, STAGES)),
            (_compute_grad_query, (memory, work, 2, CAUSAL, STAGES)),
            (_copy_keys, (q, k, memory, work, GROUP, CAUSAL, STAGES)),
        ],
        [4, 4, 1],
        [REGISTERS, REGISTERS, 24],
    )


@gluon.jit
def _key_item(item, planes, queries, keys, CAUSAL: gl.constexpr):
    """Return the plane of an item, its first key, and the tiles of queries that see any."""
    # The first keys are seen by the most queries, and go first.
    start = item // planes * WARPGROUPS * ROWS
    low = 0
    if CAUSAL:
        low = gl.minimum(gl.maximum(start - (keys - queries), 0), queries) // COLUMNS
    return item % planes, start, low, gl.cdiv(queries, COLUMNS) - low


@gluon.jit
def _copy_queries(
    q, k, values, memory, work, GROUP: gl.constexpr, CAUSAL: gl.constexpr, STAGES: gl.constexpr
):
    k_tiles, q_tiles, value_tiles, k_full, k_empty, q_full, q_empty = memory
    _, planes, heads, queries, keys, _, _, _ = work
    items = planes * gl.cdiv(keys, WARPGROUPS * ROWS)
    key_heads = heads // GROUP
    count = 0
    for turn in range(gl.cdiv(items, gl.num_programs(0))):
        item = item_of(turn, items)
        if item < items:
            plane, start, low, tiles = _key_item(item, planes, queries, keys, CAUSAL)
            batch = plane // key_heads
            key_head = plane % key_heads
            copy_rows(k, k_tiles, k_full, k_empty, batch, key_head, start, turn)
            for step in range(GROUP * tiles):
                stage = count % STAGES
                head = key_head * GROUP + step // tiles
                first = (low + step % tiles) * COLUMNS
                full = q_full.index(stage)
                mbarrier.wait(q_empty.index(stage), (count // STAGES & 1) ^ 1)
                mbarrier.expect(full, q.block_type.nbytes + 3 * values.block_type.nbytes)
                copy_tile(q, [batch, head, first, 0], full, q_tiles.index(stage))
                for j in gl.static_range(3):
                    row = (batch * heads + head) * 3 + j
                    copy_tile(values, [row, first], full, value_tiles.index(3 * stage + j))
                count += 1


@gluon.jit
def _column_values(value_tiles, at, layout: gl.constexpr):
    tile = value_tiles.index(at).reshape([COLUMNS])
    return gl.expand_dims(tile.load(gl.SliceLayout(0, layout)), 0)


@gluon.jit
def _grad_of_columns(x, scale, value_tiles, stage):
    layout: gl.constexpr = x.type.layout
    level = _column_values(value_tiles, 3 * stage, layout)
    a = _column_values(value_tiles, 3 * stage + 1, layout)
    b = _column_values(value_tiles, 3 * stage + 2, layout)
    return _grad_logits(x, scale, level, a, b)


@gluon.jit
def _compute_grad_key(
    memory,
    work,
    WARPGROUP: gl.constexpr,
    GROUP: gl.constexpr,
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
):
    k_tiles, q_tiles, value_tiles, k_full, k_empty, q_full, q_empty = memory
    grad_k, planes, _, queries, keys, width, scale, scale_2 = work
    block: gl.constexpr = k_tiles.shape[4]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, block, 16])
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    zeros = gl.full([ROWS, COLUMNS], 0.0, gl.float32, layout)
    items = planes * gl.cdiv(keys, WARPGROUPS * ROWS)
    count = 0
    for turn in range(gl.cdiv(items, gl.num_programs(0))):
        item = item_of(turn, items)
        if item < items:
            plane, start, low, tiles = _key_item(item, planes, queries, keys, CAUSAL)
            # In units of the queries' positions: query i sees the keys up to i.
            first = start + ROWS * WARPGROUP - (keys - queries)
            acc = gl.full([ROWS, block], 0.0, gl.float32, out_layout)
            k_tile = copied_rows(k_tiles, k_full, turn, WARPGROUP)
            masked = 0
            if CAUSAL:
                # Up to here some query of a tile may not see some key.
                hidden = gl.cdiv(gl.maximum(first + ROWS - 1, 0), COLUMNS) - low
                masked = gl.minimum(gl.maximum(hidden, 0), tiles)
            for step in range(GROUP * tiles):
                i = step % tiles
                q_tile = copied(q_tiles, q_full, count, STAGES)
                x = warpgroup_mma(k_tile, q_tile.permute((1, 0)), zeros, use_acc=False)
                grad = _grad_of_columns(x, scale_2, value_tiles, count % STAGES)
                if i < masked:
                    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
                    column = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
                    column += (low + i) * COLUMNS
                    visible = gl.expand_dims(column, 0) >= gl.expand_dims(row, 1)
                    grad = gl.where(visible, grad, 0.0)
                grad = gl.convert_layout(grad.to(q_tiles.dtype), weight_layout)
                acc = warpgroup_mma(grad, q_tile, acc)
                mbarrier.arrive(q_empty.index(count % STAGES))
                count += 1
            mbarrier.arrive(k_empty.index(turn % 2))
            store_rows(grad_k, acc * scale, plane, start + ROWS * WARPGROUP, keys, width)


@gluon.jit
def grad_key_kernel(
    q,
    k,
    values,
    grad_k,
    planes,
    heads,
    queries,
    keys,
    width,
    scale,
    scale_2,
    GROUP: gl.constexpr,
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
    REGISTERS: gl.constexpr,
    num_warps: gl.constexpr,
):
    k_tiles = gl.allocate_shared_memory(k.dtype, [2 * WARPGROUPS] + k.block_type.shape, k.layout)
    q_tiles = gl.allocate_shared_memory(q.dtype, [STAGES] + q.block_type.shape, q.layout)
    value_tiles = gl.allocate_shared_memory(
        gl.float32, [3 * STAGES] + values.block_type.shape, values.layout
    )
    k_full = barriers(2, 1)
    k_empty = barriers(2, WARPGROUPS)
    q_full = barriers(STAGES, 1)
    q_empty = barriers(STAGES, WARPGROUPS)
    fence_async_shared()
    memory = (k_tiles, q_tiles, value_tiles, k_full, k_empty, q_full, q_empty)
    work = (grad_k, planes, heads, queries, keys, width, scale, scale_2)
    gl.warp_specialize(
        [
            (_compute_grad_key, (memory, work, 0, GROUP, CAUSAL, STAGES)),
            (_compute_grad_key, (memory, work, 1, GROUP, CAUSAL, STAGES)),
            (_compute_grad_key, (memory, work, 2, GROUP, CAUSAL, STAGES)),
            (_copy_queries, (q, k, values, memory, work, GROUP, CAUSAL, STAGES)),
        ],
        [4, 4, 1],
        [REGISTERS, REGISTERS, 24],
    )


@triton.jit
def _values_kernel(
    lse, entropy, grad_lse, grad_entropy, values, queries, padded, scale, BLOCK: tl.constexpr
):
    query = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = query < queries
    at = tl.program_id(1).to(tl.int64) * queries + query
    row_lse = tl.load(lse + at, mask=inside, other=float("-inf"))
    row_entropy = tl.load(entropy + at, mask=inside, other=0.0)
    row_grad_lse = tl.load(grad_lse + at, mask=inside, other=0.0)
    row_grad_entropy = tl.load(grad_entropy + at, mask=inside, other=0.0)
    # A row that sees nothing has no gradient: its weights, 2^(x − level), are 0.
    nothing = row_lse == float("-inf")
    level = tl.where(nothing, -FAR_BELOW, row_lse * LOG2_E)
    mean = tl.where(nothing, 0.0, row_lse - row_entropy)
    values += tl.program_id(1).to(tl.int64) * 3 * padded + query
    tl.store(values, level, mask=query < padded)
    tl.store(values + padded, row_grad_lse + row_grad_entropy * mean, mask=query < padded)
    tl.store(values + 2 * padded, row_grad_entropy * scale, mask=query < padded)


_grad_query, _grad_key = Launcher(grad_query_kernel), Launcher(grad_key_kernel)
_values = Launcher(_values_kernel)


def gradients(
    scores: Scores, lse: Tensor, entropy: Tensor, grad_lse: Tensor, grad_entropy: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients by the query and the key."""
    query, key = scores.query, scores.key
    batch, heads, queries = scores.shape
    keys, width = key.shape[2:]
    values = _query_values(scores, lse, entropy, grad_lse, grad_entropy)
    grad_query = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    grad_key = torch.empty(key.shape, dtype=key.dtype, device=key.device)
    numbers = heads, queries, keys, width
    settings = {
        "GROUP": heads // key.shape[1],
        "CAUSAL": scores.is_causal,
        "STAGES": STAGES,
        "REGISTERS": REGISTERS,
        "num_warps": 4,
    }
    scales = scores.scale, base_2(scores.scale)
    planes = batch * heads
    _grad_query(
        programs(planes * ceil_div(queries, TILE_ROWS), query.device),
        (tiles_of(query, ROWS.value), tiles_of(key, TILE_COLUMNS), values, grad_query),
        (planes, *numbers, values.shape[-1], *scales),
        **settings,
    )
    planes = batch * key.shape[1]
    by_row = row_values(values.view(-1, values.shape[-1]))
    _grad_key(
        programs(planes * ceil_div(keys, TILE_ROWS), query.device),
        (tiles_of(query, TILE_COLUMNS), tiles_of(key, ROWS.value), by_row, grad_key),
        (planes, *numbers, *scales),
        **settings,
    )
    return grad_query, grad_key


def _query_values(
    scores: Scores, lse: Tensor, entropy: Tensor, grad_lse: Tensor, grad_entropy: Tensor
) -> Tensor:
    """Return level, a and b of every query, of shape (batch, heads, 3, queries and some zeros)."""
    batch, heads, queries = scores.shape
    padded = ceil_div(queries, 4) * 4
    values = torch.empty(batch, heads, 3, padded, dtype=torch.float32, device=lse.device)
    _values(
        (ceil_div(padded, 1024), batch * heads),
        (lse, entropy, grad_lse.contiguous(), grad_entropy.contiguous(), values),
        (queries, padded, scores.scale),
        BLOCK=1024,
    )
    return values
