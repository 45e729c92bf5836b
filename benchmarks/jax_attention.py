"""Attention in JAX beside JAX's own and beside the published way, which holds all logits.

On a GPU: bf16, causal, width 128, 8,192 to 131,072 tokens; the yardstick is
`jax.nn.dot_product_attention(implementation="cudnn")`. On a CPU: float32, causal, width 64, 8,192
tokens, beside the published way. Memory is what the compiled call needs beyond its arguments and
results. "Backward" is forward and backward together, through the policy.

    python benchmarks/jax_attention.py    writes benchmarks/results/<device>/jax_attention.csv
"""

import functools
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
from jax import Array
from measure import CUDA, keep, summary
from softmax import published_jax

from sharpmax import LogLength
from sharpmax.jax import attention, row_statistics

GPU = jax.default_backend() == "gpu"
SHAPES = [(8192, 32), (32768, 8), (131072, 8)] if GPU else [(8192, 4)]
WIDTH, DTYPE = (128, jnp.bfloat16) if GPU else (64, jnp.float32)
ROUNDS = 20 if GPU else 3
MOST_LOGITS = 2**32
"""That the published way is asked to hold."""

Call = Callable[..., Any]


def published(query: Array, key: Array, value: Array) -> Array:
    """Attend with adaptive temperature as it was published: with every logit at hand."""
    length = query.shape[1]
    logits = jnp.einsum("bthd,bshd->bhts", query, key, preferred_element_type=jnp.float32)
    causal = jnp.tril(jnp.ones((length, length), bool))
    logits = jnp.where(causal, logits / WIDTH**0.5, jnp.finfo(jnp.float32).min)
    weights = published_jax(logits).astype(value.dtype)
    return jnp.einsum("bhts,bshd->bthd", weights, value)


def candidates(length: int, heads: int) -> dict[str, Call]:
    own = "cudnn" if GPU else "xla"
    causal = functools.partial(attention, is_causal=True)
    calls: dict[str, Call] = {
        f"jax.nn {own}": functools.partial(
            jax.nn.dot_product_attention, is_causal=True, implementation=own
        )
    }
    ours = ["pallas", "cudnn"] if GPU else ["chunked"]
    calls |= {f"PAPER {name}": functools.partial(causal, implementation=name) for name in ours}
    by_length = functools.partial(causal, policy=LogLength(2048, 0.2), implementation=ours[0])
    calls |= {f"LogLength {ours[0]}": by_length}
    if length**2 * heads <= MOST_LOGITS:
        calls["published"] = published
    return calls


def statistics_alone() -> dict[str, Call]:
    names = ["pallas", "cudnn"] if GPU else ["chunked"]

    def of(name: str, query: Array, key: Array, _: Array) -> Any:
        rows = row_statistics(query, key, is_causal=True, implementation=name)
        return rows.lse, rows.entropy

    return {f"statistics {name}": functools.partial(of, name) for name in names}


def backward(call: Call) -> Call:
    return jax.grad(lambda *a: (call(*a).astype(jnp.float32) ** 2).sum(), (0, 1, 2))


def in_turn(calls: dict[str, Call], arrays: list[Array]) -> dict[str, list[float]]:
    """Time the calls round after round, each compiled and warmed up before."""
    for call in calls.values():
        for _ in range(2):
            jax.block_until_ready(call(*arrays))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call(*arrays))
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def main() -> None:
    if GPU != CUDA:
        raise SystemExit("JAX and PyTorch, which names the device, must run on the same one")
    rows: list[dict[str, Any]] = []
    for length, heads in SHAPES:
        keys = jax.random.split(jax.random.key(length), 3)
        arrays = [jax.random.normal(k, (1, length, heads, WIDTH), DTYPE) for k in keys]
        forward = candidates(length, heads)
        for what, calls in (
            ("forward", forward | statistics_alone()),
            ("backward", {name: backward(call) for name, call in forward.items()}),
        ):
            compiled = {}
            for name, call in calls.items():
                try:
                    compiled[name] = jax.jit(call).lower(*arrays).compile()
                    jax.block_until_ready(compiled[name](*arrays))
                except Exception as error:  # too large, or not for this machine: the others go on
                    print(length, what, name, "failed:", str(error)[:200], flush=True)
                    compiled.pop(name, None)
            if not compiled:
                continue
            times = in_turn(compiled, arrays)
            yardstick = times[next(iter(times))]
            for name, taken in times.items():
                memory = compiled[name].memory_analysis().temp_size_in_bytes
                row: dict[str, Any] = {
                    "what": what,
                    "candidate": name,
                    "tokens": length,
                    "heads": heads,
                    "width": WIDTH,
                    "dtype": jnp.dtype(DTYPE).name,
                    "yardstick": next(iter(times)),
                    **summary(taken, yardstick),
                    "temporary_mib": round(memory / 2**20, 1),
                    "jax": jax.__version__,
                }
                rows.append(row)
                print(*row.values(), flush=True)
            keep("jax_attention", rows)


if __name__ == "__main__":
    main()
