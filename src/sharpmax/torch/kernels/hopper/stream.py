"""What the Hopper kernels share: the ring of tiles, the rows of a warpgroup, and who sees what."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from sharpmax.torch.kernels.launch import processors

if TYPE_CHECKING:
    from torch import Tensor

WARPGROUPS = gl.constexpr(3)
ROWS = gl.constexpr(64)
"""Rows of one warpgroup: as many as its matrix instruction takes."""
COLUMNS = gl.constexpr(128)
"""Columns of a tile in the ring."""
REGISTERS = 160
"""Registers of a thread that computes; three times as many and a few to copy are all there are."""

TILE_ROWS, TILE_COLUMNS = WARPGROUPS.value * ROWS.value, COLUMNS.value
GL_TYPES = {
    torch.float16: gl.float16,
    torch.bfloat16: gl.bfloat16,
    torch.float32: gl.float32,
}

# Renamed in later versions of Triton.
copy_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared


@gluon.jit
def barriers(STAGES: gl.constexpr, arrivals: gl.constexpr):
    """Return a barrier for each stage of a ring."""
    stages = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(stages.index(stage), arrivals)
    return stages


@gluon.jit
def item_of(turn, items):
    """Return which item of work this program does in a turn, possibly none: one past the last.

    Items are sorted, the longest first. Every other turn deals them out in reverse, so that no
    program gets the longest of every turn.
    """
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    place = program
    if turn % 2 == 1:
        place = programs - 1 - program
    return gl.minimum(turn * programs + place, items)


@gluon.jit
def copy_rows(source, tiles, full, empty, batch, head, start, turn):
    """Copy the rows of all warpgroups, those past the end as zeros, into one of two places."""
    place = turn % 2
    mbarrier.wait(empty.index(place), (turn // 2 & 1) ^ 1)
    mbarrier.expect(full.index(place), WARPGROUPS * source.block_type.nbytes)
    for group in gl.static_range(WARPGROUPS):
        at = [batch, head, start + ROWS * group, 0]
        copy_tile(source, at, full.index(place), tiles.index(place * WARPGROUPS + group))


@gluon.jit
def copied_rows(tiles, full, turn, WARPGROUP: gl.constexpr):
    """Wait for this turn's rows and return those of a warpgroup, of shape (rows, width)."""
    place = turn % 2
    mbarrier.wait(full.index(place), turn // 2 & 1)
    shape: gl.constexpr = tiles.shape
    return tiles.index(place * WARPGROUPS + WARPGROUP).reshape([shape[3], shape[4]])


@gluon.jit
def copy_columns(source, tiles, full, empty, batch, head, first, step, STAGES: gl.constexpr):
    """Copy a tile of columns into the ring as soon as its place is free."""
    stage = step % STAGES
    mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)
    mbarrier.expect(full.index(stage), source.block_type.nbytes)
    copy_tile(source, [batch, head, first, 0], full.index(stage), tiles.index(stage))


@gluon.jit
def copied(tiles, full, step, STAGES: gl.constexpr):
    """Wait for a tile of the ring and return it, of shape (columns, width)."""
    stage = step % STAGES
    mbarrier.wait(full.index(stage), step // STAGES & 1)
    shape: gl.constexpr = tiles.shape
    return tiles.index(stage).reshape([shape[3], shape[4]])


@gluon.jit
def keys_of_rows(first, queries, keys, CAUSAL: gl.constexpr):
    """Return how many tiles of keys all rows from `first` see whole, and the keys any sees."""
    whole = keys
    seen = keys
    if CAUSAL:
        whole = gl.maximum(gl.minimum(keys, first + keys - queries + 1), 0)
        seen = gl.maximum(gl.minimum(keys, first + ROWS + keys - queries), 0)
    return whole // COLUMNS, seen


@gluon.jit
def row_item(item, planes, queries, keys, CAUSAL: gl.constexpr):
    """Return the plane of an item, its first row and how many tiles of keys its rows see."""
    row_tiles = gl.cdiv(queries, WARPGROUPS * ROWS)
    # The last rows see the most keys: they go first.
    start = (row_tiles - 1 - item // planes) * WARPGROUPS * ROWS
    _, seen = keys_of_rows(start + (WARPGROUPS - 1) * ROWS, queries, keys, CAUSAL)
    return item % planes, start, gl.cdiv(seen, COLUMNS)


@gluon.jit
def is_visible(rows, begin, queries, keys, layout: gl.constexpr, CAUSAL: gl.constexpr):
    """Tell which keys of the tile at `begin` each query sees."""
    columns = begin + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
    visible = gl.expand_dims(columns, 0) < keys
    if CAUSAL:
        visible &= gl.expand_dims(columns, 0) <= gl.expand_dims(rows, 1) + keys - queries
    return visible


@gluon.jit
def store_rows(out, values, plane, first, rows, width):
    """Store a warpgroup's rows of a contiguous (planes, rows, width) tensor."""
    layout: gl.constexpr = values.type.layout
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, values.shape[1], layout=gl.SliceLayout(0, layout))
    inside = gl.expand_dims(row < rows, 1) & gl.expand_dims(column < width, 0)
    at = (plane.to(gl.int64) * rows + gl.expand_dims(row, 1)) * width + gl.expand_dims(column, 0)
    gl.store(out + at, values.to(out.dtype.element_ty), mask=inside)


def programs(items: int, device: torch.device) -> tuple[int, int]:
    """Return the grid: a program for each multiprocessor, or for each item where these are few."""
    return min(items, processors(device)), 1


def block_width(width: int) -> int:
    """Return the width of a tile in shared memory; what exceeds the tensor's own is zeros."""
    return 64 if width <= 64 else 128


def tiles_of(tensor: Tensor, rows: int) -> TensorDescriptor:
    """Describe tiles of some rows of a (batch, heads, length, width) tensor to the copy engine."""
    strides_fit = all(stride and stride % 8 == 0 for stride in tensor.stride()[:3])
    if not strides_fit or tensor.stride(3) != 1 or tensor.data_ptr() % 16:
        tensor = tensor.contiguous()
    return _described(tensor, [1, 1, rows, block_width(tensor.shape[3])])


def row_values(values: Tensor) -> TensorDescriptor:
    """Describe tiles of a float32 tensor (planes, length), the length a multiple of 4."""
    return _described(values, [1, TILE_COLUMNS])


def _described(tensor: Tensor, shape: list[int]) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(tensor, shape, _layout(tensor.dtype, *shape))


@functools.cache
def _layout(dtype: torch.dtype, *shape: int) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for(list(shape), GL_TYPES[dtype])


def base_2(scale: float) -> float:
    """Return the scale that makes logits in base 2."""
    return scale / math.log(2)
