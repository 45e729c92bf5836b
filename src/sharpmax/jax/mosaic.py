"""Row statistics on Hopper by a kernel in Pallas' Mosaic.

One warpgroup fetches tiles of keys into a ring of slots in shared memory. Three others multiply,
each for queries of its own, so that one's exponentials hide behind another's products. They keep
three numbers a row in base 2: the largest logit m so far, l = Σ 2^(x − m) and
u = Σ 2^(x − m)·(x − m) for logits x·ln 2. Sums over a row stay spread over the threads that hold
it until the end. The last queries see the most keys, so they go first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from sharpmax.jax.flash import Summary

if TYPE_CHECKING:
    from sharpmax.jax.scores import Scores

    Carried = tuple[Array, Array, Array]

QUERIES, KEYS = 64, 128
"""In a tile of one warpgroup: multiples of 64, and no more than 256 keys."""
GROUPS, SLOTS = 3, 4
"""How many warpgroups multiply, and how many tiles of keys shared memory holds."""
SPREAD = 8
"""How many sums a row is spread over until the end."""
FETCHING = 32
"""Registers of a thread of the warpgroup that fetches; the others share what is left."""
WIDTHS = (64, 128)
NOTHING = -1e30
"""A logit that does not count: finite, for −∞ − (−∞) is no number."""
LN2, SMALLEST = math.log(2), 1e-37


def refusal(scores: Scores) -> str | None:
    """Return why the kernel cannot take these scores, or None if it can."""
    return refusal_of_device(scores.is_causal) or refusal_of_scores(scores)


def refusal_of_device(is_causal: bool) -> str | None:
    """Return why this device or this JAX has no such kernel, or None if it has."""
    if jax.default_backend() != "gpu":
        return f"needs a GPU, and JAX runs on {jax.default_backend()}"
    capability = str(getattr(jax.devices()[0], "compute_capability", "unknown"))
    if not capability.startswith("9."):
        return f"needs a GPU of compute capability 9, got {capability}"
    try:
        from jax._src.lib import cuda_versions
        from jax.experimental.pallas import mosaic_gpu  # noqa: F401
    except ImportError:
        return f"needs a JAX with Pallas' Mosaic for GPUs where 0.10 has it, got {jax.__version__}"
    version = 0 if cuda_versions is None else cuda_versions.cuda_runtime_get_version()
    if is_causal and 12080 <= version < 12091:
        return "is miscompiled by CUDA 12.8 and 12.9.0 where it is causal"
    return None


def refusal_of_scores(scores: Scores) -> str | None:
    """Return why no GPU could take these scores, or None."""
    if scores.query.dtype not in (jnp.bfloat16, jnp.float16):
        return f"takes bfloat16 and float16, got {scores.query.dtype}"
    if scores.bias is not None or scores.mask is not None or scores.window is not None:
        return "takes lengths and is_causal, but no bias, mask or window"
    if scores.query.shape[3] not in WIDTHS:
        return f"takes widths of 64 and 128, got {scores.query.shape[3]}"
    return None


def summary(scores: Scores) -> Summary:
    """Return the summary of every row by the kernel; of rows that see no key it is undefined."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    batch, queries, heads, width = scores.query.shape
    keys, key_heads = scores.key.shape[1:3]
    query = _padded(scores.query if scores.scale >= 0 else -scores.query, GROUPS * QUERIES)
    key = _padded(scores.key, KEYS)
    lengths = scores.key_lengths
    given = () if lengths is None else (jnp.clip(lengths, 1, keys).astype(jnp.int32),)
    blocks = query.shape[1] // (GROUPS * QUERIES)
    rows = jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
        (batch, heads, query.shape[1]), jnp.float32
    )
    scale = abs(scores.scale) / LN2
    task = Task(keys, blocks, heads // key_heads, scale, scores.is_causal)
    top, total, tilted = plgpu.kernel(
        partial(_kernel, task=task),
        out_type=[rows] * 3,
        scratch_types=_scratch(width, query.dtype),
        grid=(batch, heads, blocks),
        grid_names=("batch", "head", "block"),
        num_threads=GROUPS + 1,
        thread_name="group",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        kernel_name="row_statistics",
    )(query, key, *given)
    top, total, tilted = (array[:, :, :queries] for array in (top, total, tilted))
    total = jnp.maximum(total, SMALLEST)
    entropy = jnp.maximum(jnp.log(total) - LN2 * tilted / total, 0.0)
    return Summary(LN2 * top, LN2 * top + jnp.log(total), entropy)


@dataclass(frozen=True)
class Task:
    """What the kernel knows in advance.

    Attributes:
        keys: How many keys there are, without those that fill the last tile.
        blocks: Of queries, each of them for all warpgroups.
        sharing: How many heads share their keys.
        scale: Of the logits in base 2.
        is_causal: Whether query i sees no key after key i.
    """

    keys: int
    blocks: int
    sharing: int
    scale: float
    is_causal: bool

    def tiles(self, after: Array, length: Array) -> Array:
        """Return how many tiles hold what some query before `after` sees."""
        end = jnp.minimum(length, after) if self.is_causal else length
        return lax.div(end + (KEYS - 1), _int(KEYS))

    def slot(self, tile: Array) -> Array:
        """Return where a tile lies in shared memory."""
        return lax.rem(tile, _int(SLOTS))

    def whole_tiles(self, first: Array, length: Array) -> Array:
        """Return how many tiles are seen in full by all queries from the first."""
        end = jnp.minimum(length, first + 1) if self.is_causal else length
        return lax.div(end, _int(KEYS))


def _scratch(width: int, dtype: Any) -> dict[str, Any]:
    """Return what the warpgroups share: tiles, rows to be written, and barriers."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    laid = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    return {
        "query_tiles": plgpu.SMEM((GROUPS, QUERIES, width), dtype, transforms=laid),
        "ring": plgpu.SMEM((SLOTS, KEYS, width), dtype, transforms=laid),
        "rows": [plgpu.SMEM((GROUPS, QUERIES), jnp.float32)] * 3,
        "arrived": plgpu.Barrier(num_barriers=GROUPS),
        "full": plgpu.Barrier(num_barriers=SLOTS),
        "empty": plgpu.Barrier(num_arrivals=GROUPS, num_barriers=SLOTS),
    }


def _kernel(
    query_ref: Any,
    key_ref: Any,
    *refs: Any,
    task: Task,
    query_tiles: Any,
    ring: Any,
    rows: Any,
    arrived: Any,
    full: Any,
    empty: Any,
) -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    batch, head, group = (lax.axis_index(name) for name in ("batch", "head", "group"))
    block = task.blocks - 1 - lax.axis_index("block")
    length = refs[0][batch] if len(refs) == 4 else _int(task.keys)
    tiles = task.tiles((block + 1) * (GROUPS * QUERIES), length)
    others, fetching = _registers()

    @pl.when(group == GROUPS)
    def fetch() -> None:
        plgpu.set_max_registers(fetching, action="decrease")
        key_head = lax.div(head, _int(task.sharing))

        def step(tile: Array, _: None) -> None:
            slot = task.slot(tile)

            @pl.when(tile >= SLOTS)
            def wait() -> None:
                plgpu.barrier_wait(empty.at[slot])

            @pl.when(tile < tiles)
            def fill() -> None:
                part = key_ref.at[batch, pl.ds(tile * KEYS, KEYS), key_head]
                plgpu.copy_gmem_to_smem(part, ring.at[slot], full.at[slot])

        # So many steps more that every slot is seen empty at the end.
        lax.fori_loop(0, tiles + SLOTS, step, None)

    @pl.when(group < GROUPS)
    def multiply() -> None:
        plgpu.set_max_registers(others, action="increase")
        first = block * (GROUPS * QUERIES) + group * QUERIES
        ours = pl.ds(first, QUERIES)
        mine, there = query_tiles.at[group], arrived.at[group]
        plgpu.copy_gmem_to_smem(query_ref.at[batch, ours, head], mine, there)
        plgpu.barrier_wait(there)
        found = Walk(task, mine, ring, full, empty, first, length).all_tiles(tiles)
        for value, row in zip(found, rows, strict=True):
            row.at[group][...] = value
        plgpu.commit_smem()  # type: ignore[no-untyped-call]
        for row, ref in zip(rows, refs[-3:], strict=True):
            plgpu.copy_smem_to_gmem(row.at[group], ref.at[batch, head, ours])
        plgpu.wait_smem_to_gmem(0)


@dataclass(frozen=True, eq=False)
class Walk:
    """A warpgroup on its way over the keys.

    Attributes:
        task: What is known in advance.
        query: Its tile of queries.
        ring: Slots for tiles of keys.
        full: A barrier a slot, passed when a tile is there.
        empty: A barrier a slot, passed when all warpgroups are done with the tile.
        first: Its first query.
        length: How many keys there are.
    """

    task: Task
    query: Any
    ring: Any
    full: Any
    empty: Any
    first: Array
    length: Array

    def all_tiles(self, until: Array) -> Carried:
        """Return m, l and u of every query; the ring turns on until so many tiles are gone."""
        tiles = self.task.tiles(self.first + QUERIES, self.length)
        whole = self.task.whole_tiles(self.first, self.length)
        nothing = _laid(jnp.full(QUERIES, NOTHING, jnp.float32), rows=True)
        zeros = _laid(jnp.zeros((QUERIES, SPREAD), jnp.float32), rows=False)
        carried = nothing, zeros, zeros
        carried = lax.fori_loop(0, whole, partial(self.step, masked=False), carried)
        carried = lax.fori_loop(whole, tiles, partial(self.step, masked=True), carried)
        lax.fori_loop(tiles, until, self.skip, None)
        top, total, tilted = carried
        return top, total.sum(axis=1), tilted.sum(axis=1)

    def step(self, tile: Array, carried: Carried, masked: bool) -> Carried:
        """Return m, l and u with one more tile, masked unless all queries see all of it."""
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import mosaic_gpu as plgpu

        accumulator = plgpu.WGMMAAccumulatorRef((QUERIES, KEYS), jnp.float32)
        products = pl.run_scoped(lambda acc: self.products(acc, tile), accumulator)
        self.release(tile)
        return self.absorbed(products, carried, tile if masked else None)

    def products(self, acc: Any, tile: Array) -> Array:
        """Return q·kᵀ of a tile, as soon as it is there."""
        from jax.experimental.pallas import mosaic_gpu as plgpu

        slot = self.task.slot(tile)
        plgpu.barrier_wait(self.full.at[slot])
        plgpu.wgmma(acc, self.query, self.ring.at[slot].transpose((1, 0)))
        found: Array = acc[...]
        return found

    def release(self, tile: Array) -> None:
        """Let the slot of a tile be filled again."""
        from jax.experimental.pallas import mosaic_gpu as plgpu

        plgpu.barrier_arrive(self.empty.at[self.task.slot(tile)])

    def skip(self, tile: Array, _: None) -> None:
        """Let a tile go by that only others see.

        It must be there first: else two releases in a row could pass for one of each warpgroup.
        """
        from jax.experimental.pallas import mosaic_gpu as plgpu

        plgpu.barrier_wait(self.full.at[self.task.slot(tile)])
        self.release(tile)

    def absorbed(self, products: Array, carried: Carried, tile: Array | None) -> Carried:
        """Return m, l and u with one more tile, masked if it is named."""
        top, total, tilted = carried
        scale = self.task.scale
        if tile is not None:
            logits = self.masked(scale * products, tile)
        highest = scale * products.max(axis=1) if tile is None else logits.max(axis=1)
        higher = jnp.maximum(top, highest)
        fall = top - higher
        shrunk = jnp.exp2(fall)
        tilted = (tilted + total * _across(fall)) * _across(shrunk)
        total = total * _across(shrunk)
        for start in range(0, KEYS, SPREAD):
            # Where there is no mask the scale fuses with what is taken from the logits.
            part = lax.slice(
                products if tile is None else logits, (0, start), (QUERIES, start + SPREAD)
            )
            logit = scale * part if tile is None else part
            below = logit - lax.broadcast_in_dim(higher, logit.shape, [0])
            weights = jnp.exp2(below)
            total += weights
            tilted += weights * below
        return higher, total, tilted

    def masked(self, logits: Array, tile: Array) -> Array:
        """Return the logits of a tile, NOTHING where a query does not see the key."""
        from jax.experimental.pallas import mosaic_gpu as plgpu

        iota = partial(plgpu.broadcasted_iota, jnp.int32, logits.shape, layout=plgpu.Layout.WGMMA)
        place = iota(1) + tile * KEYS
        logits = jnp.where(place < self.length, logits, NOTHING)
        if self.task.is_causal:
            logits = jnp.where(place <= iota(0) + self.first, logits, NOTHING)
        return logits


def _registers() -> tuple[int, int]:
    """Return how many registers a thread has that multiplies, and one that fetches."""
    at_launch = 65536 // (128 * (GROUPS + 1)) // 8 * 8
    others = (at_launch * (GROUPS + 1) - FETCHING) // GROUPS // 8 * 8
    return min(others, 240), FETCHING


def _int(value: int) -> Array:
    return jnp.array(value, jnp.int32)


def _laid(array: Array, rows: bool) -> Array:
    """Return an array laid over the threads as products are, or as their rows."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    layout = plgpu.Layout.WGMMA.reduce(1) if rows else plgpu.Layout.WGMMA
    laid: Array = plgpu.layout_cast(array, layout)
    return laid


def _across(rows: Array) -> Array:
    """Return a number a row beside each sum of the row."""
    return lax.broadcast_in_dim(rows, (QUERIES, SPREAD), [0])


def _padded(array: Array, size: int) -> Array:
    """Return (batch, length, heads, width) filled up with zeros to a multiple of a size."""
    short = -array.shape[1] % size
    return jnp.pad(array, ((0, 0), (0, short), (0, 0), (0, 0))) if short else array
