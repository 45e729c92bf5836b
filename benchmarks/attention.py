"""The cost of sharpened attention beside the fastest plain attention on the same device.

For every shape, in one run and in turn: PyTorch's SDPA (its fastest backend), the row statistics
alone, `sharpmax.torch.attention` with the paper's policy and with one that sets the sink apart, the
backward passes with β a constant and through the policy, and the published formulation with the
matrix materialised where it fits.
Times are medians with p20 and p80; ratios are medians of the ratios of a round. Memory is the
peak beyond the inputs and SDPA's own.

    python benchmarks/attention.py        writes benchmarks/results/<device>/attention.csv
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from measure import CUDA, PLACE, in_turn, keep, peak_bytes, sdpa, summary
from torch import Tensor

import sharpmax
from sharpmax.torch import attention, row_statistics

DTYPE = torch.bfloat16 if CUDA else torch.float32
SHAPES = (  # heads, length, width
    [(32, 8192, 128), (8, 32768, 128), (32, 8192, 64), (8, 32768, 64)]
    if CUDA
    else [(4, 4096, 64), (2, 8192, 64)]
)


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return sdpa(query, key, value, is_causal=True)


def sharpened(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return attention(query, key, value, is_causal=True)


def constant(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    policy = sharpmax.Detached(sharpmax.PAPER)
    return attention(query, key, value, policy=policy, is_causal=True)


def apart(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    policy = sharpmax.LogLinear(256, 0.1, 0.1, sink_apart=True, sink=0.5)
    return attention(query, key, value, policy=policy, is_causal=True)


def published(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend as the paper's code does, with every step materialised."""
    length = query.shape[2]
    logits = (query @ key.mT).float() / math.sqrt(query.shape[-1])
    hidden = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    logits = logits.masked_fill(hidden, torch.finfo(torch.float32).min)
    p = torch.softmax(logits, dim=-1)
    entropy = -torch.sum(p * torch.log(p + 1e-9), dim=-1, keepdim=True)
    powers = enumerate(reversed(sharpmax.PAPER.coefficients))
    poly = sum(c * entropy**power for power, c in powers)
    beta = torch.where(entropy > 0.5, torch.clamp(poly, min=1.0), 1.0)
    return torch.softmax(logits * beta, dim=-1).to(value.dtype) @ value


def backward(function: Callable[..., Tensor], tensors: list[Tensor]) -> Callable[[], object]:
    leaves = [x.clone().requires_grad_() for x in tensors]
    out = function(*leaves)
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True)


def measure(heads: int, length: int, width: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    tensors = [torch.randn(1, heads, length, width, device=PLACE, dtype=DTYPE) for _ in "qkv"]
    query, key, _ = tensors
    calls: dict[str, Callable[[], object]] = {
        "sdpa": lambda: plain(*tensors),
        "row statistics": lambda: row_statistics(query, key, is_causal=True),
        "sharpmax PAPER": lambda: sharpened(*tensors),
        "sharpmax LogLinear, sink apart": lambda: apart(*tensors),
        "sdpa backward": backward(plain, tensors),
        "sharpmax PAPER backward, β constant": backward(constant, tensors),
        "sharpmax PAPER backward": backward(sharpened, tensors),
        "sharpmax LogLinear backward, sink apart": backward(apart, tensors),
    }
    if heads * length**2 <= 2**31:
        calls["published, materialised"] = lambda: published(*tensors)
    times = in_turn(calls)
    peaks = {name: peak_bytes(call) for name, call in calls.items()}
    rows = []
    for name in calls:
        yardstick = "sdpa backward" if "backward" in name else "sdpa"
        rows.append(
            {
                "candidate": name,
                "heads": heads,
                "length": length,
                "width": width,
                "causal": True,
                "dtype": str(DTYPE).removeprefix("torch."),
                "yardstick": yardstick,
                **summary(times[name], times[yardstick]),
                "bytes_a_row_beyond_sdpa": round(
                    (peaks[name] - peaks[yardstick]) / (heads * length), 1
                )
                if CUDA  # resident memory that was freed and kept hides a CPU's; see long.py
                else "",
            }
        )
        print(heads, length, width, name, rows[-1]["p50_ms"], "ms, ratio", rows[-1]["ratio"])
    return rows


if __name__ == "__main__":
    keep("attention", [row for shape in SHAPES for row in measure(*shape)])
