"""The fused softmax on a GPU beside PyTorch's own, forward and backward.

python benchmarks/cuda_softmax.py     writes benchmarks/results/<device>/softmax.csv
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from measure import in_turn, keep, summary
from torch import Tensor

import sharpmax

SHAPES = [(8192, 8192), (32768, 1024), (2048, 32768), (512, 131072)]


def backward(function: Callable[[Tensor], Tensor], logits: Tensor) -> Callable[[], object]:
    leaf = logits.clone().requires_grad_()
    out = function(leaf)
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, leaf, grad, retain_graph=True)


def measure(shape: tuple[int, int], dtype: torch.dtype) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    logits = torch.randn(shape, device="cuda", dtype=dtype)
    plain = functools.partial(torch.softmax, dim=-1)
    by_length = functools.partial(sharpmax.softmax, policy=sharpmax.LogLength(2048, 0.2))
    calls: dict[str, Callable[[], object]] = {
        "torch": lambda: plain(logits),
        "sharpmax PAPER": lambda: sharpmax.softmax(logits),
        "sharpmax LogLength": lambda: by_length(logits),
        "torch backward": backward(plain, logits),
        "sharpmax PAPER backward": backward(sharpmax.softmax, logits),
    }
    times = in_turn(calls)
    rows = []
    for name in calls:
        yardstick = "torch backward" if "backward" in name else "torch"
        numbers = summary(times[name], times[yardstick])
        rows.append(
            {
                "candidate": name,
                "shape": "x".join(map(str, shape)),
                "dtype": str(dtype).removeprefix("torch."),
                "yardstick": yardstick,
                **numbers,
            }
        )
        print(shape, dtype, name, numbers["p50_ms"], "ms, ratio", numbers["ratio"])
    return rows


if __name__ == "__main__":
    cases = [(shape, dtype) for shape in SHAPES for dtype in (torch.float32, torch.bfloat16)]
    keep("softmax", [row for case in cases for row in measure(*case)])
