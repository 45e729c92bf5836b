"""131,072 tokens: that every mode runs, in how much time, and in memory linear in the length.

Memory is the peak beyond the inputs, for each mode in a call of its own; the matrix of logits
alone would take 4 bytes × length a row, 524,288.

    python benchmarks/long.py             writes benchmarks/results/<device>/long.csv
"""

from collections.abc import Callable
from typing import Any

import torch
from measure import CUDA, PLACE, keep, peak_bytes, sdpa, timed

import sharpmax
from sharpmax.torch import attention, row_statistics

LENGTH = 131072
HEADS, WIDTH = (8, 128) if CUDA else (1, 64)
DTYPE = torch.bfloat16 if CUDA else torch.float32


def modes() -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    tensors = [torch.randn(1, HEADS, LENGTH, WIDTH, device=PLACE, dtype=DTYPE) for _ in "qkv"]
    query, key, value = tensors
    padding = (torch.arange(LENGTH, device=PLACE) >= 1000)[None, None, None, :]

    def ours(**settings: Any) -> Callable[[], object]:
        return lambda: attention(query, key, value, is_causal=True, **settings)

    def backward(**settings: Any) -> Callable[[], object]:
        def call() -> object:
            leaves = [x.detach().requires_grad_() for x in tensors]
            out = attention(*leaves, is_causal=True, **settings)
            return torch.autograd.grad(out, leaves, torch.ones_like(out))

        return call

    calls = {
        "sdpa": lambda: sdpa(query, key, value, is_causal=True),
        "row statistics": lambda: row_statistics(query, key, is_causal=True),
        "PAPER": ours(),
        "PAPER, forward and backward": backward(),
        "PAPER, window 4096": ours(window=4096),
        "PAPER, window 4096, forward and backward": backward(window=4096),
    }
    if CUDA:
        calls |= {
            "all keys": lambda: attention(query, key, value),
            "PAPER, padding mask": ours(mask=padding),
            "PAPER, softcap 50": ours(softcap=50.0),
            "PAPER, softcap 50, forward and backward": backward(softcap=50.0),
            "EntropyCap": ours(policy=sharpmax.EntropyCap(2.0)),
            "LogLength": ours(policy=sharpmax.LogLength(2048, 0.2)),
            "decode, 1 query": lambda: attention(query[:, :, -1:], key, value),
        }
    return calls


def main() -> None:
    rows = []
    for name, call in modes().items():
        if CUDA:
            call()  # compiles
        peak = peak_bytes(call)
        milliseconds = timed(call)
        rows.append(
            {
                "mode": name,
                "heads": HEADS,
                "length": LENGTH,
                "width": WIDTH,
                "dtype": str(DTYPE).removeprefix("torch."),
                "ms": round(milliseconds, 2),
                "peak_mib": round(peak / 2**20, 1),
                "bytes_a_row": round(peak / (HEADS * LENGTH), 1),
            }
        )
        print(name, rows[-1]["ms"], "ms", rows[-1]["peak_mib"], "MiB")
        keep("long", rows)


if __name__ == "__main__":
    main()
