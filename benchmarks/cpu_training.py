"""The cost of a step of training through attention in bfloat16 on a CPU, beside PyTorch's kernel.

Forward and backward, causal, in one run and in turn: PyTorch's SDPA, and `sharpmax.torch.attention`
with a policy by length and with one that sets the sink apart besides, both by large products where
the CPU multiplies bfloat16 fast. The same of the row statistics alone, beside those from PyTorch's
kernel. Times are medians with p20 and p80; ratios are medians of the ratios of a round.

    python benchmarks/cpu_training.py

writes cpu_training.csv and cpu_training_statistics.csv to benchmarks/results/cpu.
"""

from collections.abc import Callable
from typing import Any

import torch
from measure import in_turn, keep, sdpa, summary
from torch import Tensor

from sharpmax import LogLinear
from sharpmax.torch import attention, row_statistics
from sharpmax.torch.products import multiplies_fast

SHAPES = [(1, 9, 3, 512, 64), (4, 9, 3, 512, 64), (1, 9, 3, 2048, 64), (1, 8, 8, 4096, 128)]
"""Batch, heads, key heads, length, width: most of them as in a layer of SmolLM2-135M."""
POLICIES = {
    "sharpmax LogLinear": LogLinear(256, 0.1, 0.1),
    "sharpmax LogLinear, sink apart": LogLinear(256, 0.1, 0.1, sink_apart=True, sink=0.5),
}


Shape = tuple[int, int, int, int, int]


def measure_attention(shape: Shape) -> list[dict[str, Any]]:
    query, key, value = inputs(shape)
    grad = torch.randn_like(query)

    def step(function: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(function(), (query, key, value), grad)

    calls = {"sdpa": step(lambda: sdpa(query, key, value, is_causal=True, enable_gqa=True))}
    for name, policy in POLICIES.items():
        calls[name] = step(
            lambda policy=policy: attention(query, key, value, policy=policy, is_causal=True)
        )
    return table(shape, calls)


def measure_statistics(shape: Shape) -> list[dict[str, Any]]:
    query, key, _ = inputs(shape)
    grads = [torch.randn(query.shape[:-1]) for _ in range(2)]

    def step(name: str) -> Callable[[], object]:
        def call() -> object:
            rows = row_statistics(query, key, is_causal=True, implementation=name)
            return torch.autograd.grad((rows.lse, rows.entropy), (query, key), grads)

        return call

    names = ("flash", "products") if multiplies_fast() else ("flash",)
    return table(shape, {name: step(name) for name in names})


def inputs(shape: Shape) -> list[Tensor]:
    batch, heads, key_heads, length, width = shape
    torch.manual_seed(0)
    return [
        torch.randn(batch, count, length, width, dtype=torch.bfloat16, requires_grad=True)
        for count in (heads, key_heads, key_heads)
    ]


def table(shape: Shape, calls: dict[str, Callable[[], object]]) -> list[dict[str, Any]]:
    """Measure calls in turn, and give their rows, with ratios over the first."""
    times, first = in_turn(calls), next(iter(calls))
    about = dict(zip(("batch", "heads", "key_heads", "length", "width"), shape, strict=True))
    rows = []
    for name in calls:
        rows.append({"candidate": name, **about, **summary(times[name], times[first])})
        rows[-1]["by_products"] = name not in ("sdpa", "flash") and multiplies_fast()
        print(*shape, name, rows[-1]["p50_ms"], "ms, ratio", rows[-1]["ratio"])
    return rows


if __name__ == "__main__":
    keep("cpu_training", [row for shape in SHAPES for row in measure_attention(shape)])
    keep("cpu_training_statistics", [row for shape in SHAPES for row in measure_statistics(shape)])
