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
    copy_columns,
    copy_rows,
    copy_tile,
    is_visible,
    keys_of_rows,
    one_barrier,
    row_values,
    store_rows,
    tiles_of,
)
from sharpmax.torch.kernels.tile import FAR_BELOW, LOG2_E

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.torch.scores import Scores

STAGES = 3


@gluon.jit
def _grad_logits(x, scale, level, a, b):
    return gl.exp2(x * scale - level) * (a - b * x)


@gluon.jit
def _copy_keys(q, k, memory, batch, head, key_head, start, tiles, STAGES: gl.constexpr):
    q_tiles, k_tiles, q_full, k_full, k_empty = memory
    copy_rows(q, q_tiles, q_full, batch, head, start)
    for i in range(tiles):
        copy_columns(k, k_tiles, k_full, k_empty, batch, key_head, i * COLUMNS, i, STAGES)


@gluon.jit
def _compute_grad_query(
    memory, work, WARPGROUP: gl.constexpr, CAUSAL: gl.constexpr, STAGES: gl.constexpr
):
    q_tiles, k_tiles, q_full, k_full, k_empty = memory
    values, grad_q, plane, start, tiles, queries, keys, width, stride, scale, scale_2 = work
    shape: gl.constexpr = q_tiles.shape
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, shape[4], 16])
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    first = start + ROWS * WARPGROUP
    rows = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    inside = rows < queries
    at = values + plane.to(gl.int64) * 3 * stride + rows
    level = gl.expand_dims(gl.load(at, mask=inside, other=0.0), 1)
    a = gl.expand_dims(gl.load(at + stride, mask=inside, other=0.0), 1)
    b = gl.expand_dims(gl.load(at + 2 * stride, mask=inside, other=0.0), 1)
    q_tile = q_tiles.index(WARPGROUP).reshape([shape[3], shape[4]])
    whole, seen = keys_of_rows(first, queries, keys, CAUSAL)
    acc = gl.full([ROWS, shape[4]], 0.0, gl.float32, out_layout)
    zeros = gl.full([ROWS, COLUMNS], 0.0, gl.float32, layout)
    mbarrier.wait(q_full, 0)
    for i in range(whole):
        k_tile = copied(k_tiles, k_full, i, STAGES)
        x = warpgroup_mma(q_tile, k_tile.permute((1, 0)), zeros, use_acc=False)
        grad = _grad_logits(x, scale_2, level, a, b)
        acc = warpgroup_mma(gl.convert_layout(grad.to(q_tiles.dtype), weight_layout), k_tile, acc)
        mbarrier.arrive(k_empty.index(i % STAGES))
    for i in range(whole, tiles):
        k_tile = copied(k_tiles, k_full, i, STAGES)
        if i * COLUMNS < seen:
            x = warpgroup_mma(q_tile, k_tile.permute((1, 0)), zeros, use_acc=False)
            visible = is_visible(rows, i * COLUMNS, queries, keys, layout, CAUSAL)
            grad = gl.where(visible, _grad_logits(x, scale_2, level, a, b), 0.0)
            grad = gl.convert_layout(grad.to(q_tiles.dtype), weight_layout)
            acc = warpgroup_mma(grad, k_tile, acc)
        mbarrier.arrive(k_empty.index(i % STAGES))
    store_rows(grad_q, acc * scale, plane, first, queries, width)


@gluon.jit
def grad_query_kernel(
    q,
    k,
    values,
    grad_q,
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
    fence_async_shared()
    memory = (q_tiles, k_tiles, q_full, k_full, k_empty)
    work = (values, grad_q, plane, start, tiles, queries, keys, width, stride, scale, scale_2)
    gl.warp_specialize(
        [
            (_compute_grad_query, (memory, work, 0, CAUSAL, STAGES)),
            (_compute_grad_query, (memory, work, 1, CAUSAL, STAGES)),
            (_compute_grad_query, (memory, work, 2, CAUSAL, STAGES)),
            (_copy_keys, (q, k, memory, batch, head, head // GROUP, start, tiles, STAGES)),
        ],
        [4, 4, 1],
        [REGISTERS, REGISTERS, 24],
    )


@gluon.jit
def _copy_queries(
    q,
    k,
    values,
    memory,
    work,
    GROUP: gl.constexpr,
    STAGES: gl.constexpr,
):
    batch, key_head, heads, start, low, tiles = work
    k_tiles, q_tiles, value_tiles, k_full, q_full, q_empty = memory
    copy_rows(k, k_tiles, k_full, batch, key_head, start)
    for step in range(GROUP * tiles):
        stage = step % STAGES
        head = key_head * GROUP + step // tiles
        first = (low + step % tiles) * COLUMNS
        full = q_full.index(stage)
        mbarrier.wait(q_empty.index(stage), (step // STAGES & 1) ^ 1)
        mbarrier.expect(full, q.block_type.nbytes + 3 * values.block_type.nbytes)
        copy_tile(q, [batch, head, first, 0], full, q_tiles.index(stage))
        for j in gl.static_range(3):
            plane = (batch * heads + head) * 3 + j
            copy_tile(values, [plane, first], full, value_tiles.index(3 * stage + j))


@gluon.jit
def _column_values(value_tiles, at, layout: gl.constexpr):
    tile = value_tiles.index(at).reshape([COLUMNS])
    return gl.expand_dims(tile.load(gl.SliceLayout(0, layout)), 0)


@gluon.jit
def _compute_grad_key(
    memory,
    work,
    WARPGROUP: gl.constexpr,
    GROUP: gl.constexpr,
    CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
):
    k_tiles, q_tiles, value_tiles, k_full, q_full, q_empty = memory
    grad_k, plane, start, low, tiles, queries, keys, width, scale, scale_2 = work
    shape: gl.constexpr = k_tiles.shape
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, shape[4], 16])
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    # In units of the queries' positions: query i sees the keys up to i.
    first = start + ROWS * WARPGROUP - (keys - queries)
    rows = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    k_tile = k_tiles.index(WARPGROUP).reshape([shape[3], shape[4]])
    acc = gl.full([ROWS, shape[4]], 0.0, gl.float32, out_layout)
    zeros = gl.full([ROWS, COLUMNS], 0.0, gl.float32, layout)
    mbarrier.wait(k_full, 0)
    for step in range(GROUP * tiles):
        stage = step % STAGES
        begin = (low + step % tiles) * COLUMNS
        q_tile = copied(q_tiles, q_full, step, STAGES)
        if begin + COLUMNS > first or not CAUSAL:
            x = warpgroup_mma(k_tile, q_tile.permute((1, 0)), zeros, use_acc=False)
            level = _column_values(value_tiles, 3 * stage, layout)
            a = _column_values(value_tiles, 3 * stage + 1, layout)
            b = _column_values(value_tiles, 3 * stage + 2, layout)
            grad = _grad_logits(x, scale_2, level, a, b)
            if CAUSAL:
                if begin < first + ROWS - 1:
                    columns = begin + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
                    visible = gl.expand_dims(columns, 0) >= gl.expand_dims(rows, 1)
                    grad = gl.where(visible, grad, 0.0)
            grad = gl.convert_layout(grad.to(q_tiles.dtype), weight_layout)
            acc = warpgroup_mma(grad, q_tile, acc)
        mbarrier.arrive(q_empty.index(stage))
    store_rows(grad_k, acc * scale, plane, start + ROWS * WARPGROUP, keys, width)


@gluon.jit
def grad_key_kernel(
    q,
    k,
    values,
    grad_k,
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
    # The first keys are seen by the most queries, and go first as they are.
    start = gl.program_id(0) * WARPGROUPS * ROWS
    plane = gl.program_id(1)
    batch = plane // (heads // GROUP)
    key_head = plane % (heads // GROUP)
    low = 0
    if CAUSAL:
        low = gl.minimum(gl.maximum(start - (keys - queries), 0), queries) // COLUMNS
    tiles = gl.cdiv(queries, COLUMNS) - low
    k_tiles = gl.allocate_shared_memory(k.dtype, [WARPGROUPS] + k.block_type.shape, k.layout)
    q_tiles = gl.allocate_shared_memory(q.dtype, [STAGES] + q.block_type.shape, q.layout)
    value_tiles = gl.allocate_shared_memory(
        gl.float32, [3 * STAGES] + values.block_type.shape, values.layout
    )
    k_full = one_barrier()
    q_full = barriers(STAGES, 1)
    q_empty = barriers(STAGES, WARPGROUPS)
    fence_async_shared()
    memory = (k_tiles, q_tiles, value_tiles, k_full, q_full, q_empty)
    work = (grad_k, plane, start, low, tiles, queries, keys, width, scale, scale_2)
    copying = (batch, key_head, heads, start, low, tiles)
    gl.warp_specialize(
        [
            (_compute_grad_key, (memory, work, 0, GROUP, CAUSAL, STAGES)),
            (_compute_grad_key, (memory, work, 1, GROUP, CAUSAL, STAGES)),
            (_compute_grad_key, (memory, work, 2, GROUP, CAUSAL, STAGES)),
            (_copy_queries, (q, k, values, memory, copying, GROUP, STAGES)),
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
    grad_query_kernel[(triton.cdiv(queries, TILE_ROWS), batch * heads)](
        tiles_of(query, ROWS.value),
        tiles_of(key, TILE_COLUMNS),
        values,
        grad_query,
        *numbers,
        values.shape[-1],
        *scales,
        **settings,
    )
    grad_key_kernel[(triton.cdiv(keys, TILE_ROWS), batch * key.shape[1])](
        tiles_of(query, TILE_COLUMNS),
        tiles_of(key, ROWS.value),
        row_values(values.view(-1, values.shape[-1])),
        grad_key,
        *numbers,
        *scales,
        **settings,
    )
    return grad_query, grad_key


def _query_values(
    scores: Scores, lse: Tensor, entropy: Tensor, grad_lse: Tensor, grad_entropy: Tensor
) -> Tensor:
    """Return level, a and b of every query, of shape (batch, heads, 3, queries and some zeros)."""
    batch, heads, queries = scores.shape
    padded = triton.cdiv(queries, 4) * 4
    values = torch.empty(batch, heads, 3, padded, dtype=torch.float32, device=lse.device)
    _values_kernel[(triton.cdiv(padded, 1024), batch * heads)](
        lse,
        entropy,
        grad_lse.contiguous(),
        grad_entropy.contiguous(),
        values,
        queries,
        padded,
        scores.scale,
        BLOCK=1024,
    )
    return values
