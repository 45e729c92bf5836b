"""The cost of a step of training through attention in bfloat16 on a CPU, beside PyTorch's kernel.

Forward and backward, causal, in one run and in turn: PyTorch's SDPA, and `sharpmax.torch.attention`
with a policy by length and with one that sets the sink apart besides, both by large products where
the CPU multiplies bfloat16 fast. Times are medians with p20 and p80; ratios are medians of the
ratios of a round.

    python benchmarks/cpu_training.py     writes benchmarks/results/cpu/cpu_training.csv
"""

from collections.abc import Callable
from typing import Any

import torch
from measure import in_turn, keep, sdpa, summary
from torch import Tensor

from sharpmax import LogLinear
from sharpmax.torch import attention
from sharpmax.torch.tempered.products import multiplies_fast

SHAPES = [(1, 9, 3, 512, 64), (4, 9, 3, 512, 64), (1, 9, 3, 2048, 64), (1, 8, 8, 4096, 128)]
"""Batch, heads, key heads, length, width: most of them as in a layer of SmolLM2-135M."""
POLICIES = {
    "sharpmax LogLinear": LogLinear(256, 0.1, 0.1),
    "sharpmax LogLinear, sink apart": LogLinear(256, 0.1, 0.1, sink_apart=True, sink=0.5),
}


def measure(
    batch: int, heads: int, key_heads: int, length: int, width: int
) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    tensors = [
        torch.randn(batch, count, length, width, dtype=torch.bfloat16, requires_grad=True)
        for count in (heads, key_heads, key_heads)
    ]
    grad = torch.randn_like(tensors[0])

    def step(function: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(function(), tensors, grad)

    calls = {"sdpa": step(lambda: sdpa(*tensors, is_causal=True, enable_gqa=True))}
    for name, policy in POLICIES.items():
        calls[name] = step(lambda policy=policy: attention(*tensors, policy=policy, is_causal=True))
    times = in_turn(calls)
    rows = []
    for name in calls:
        shape = {"batch": batch, "heads": heads, "key_heads": key_heads}
        shape |= {"length": length, "width": width}
        rows.append({"candidate": name, **shape, **summary(times[name], times["sdpa"])})
        rows[-1]["by_products"] = name != "sdpa" and multiplies_fast()
        print(batch, heads, length, width, name, rows[-1]["p50_ms"], "ms, ratio", rows[-1]["ratio"])
    return rows


if __name__ == "__main__":
    keep("cpu_training", [row for shape in SHAPES for row in measure(*shape)])
