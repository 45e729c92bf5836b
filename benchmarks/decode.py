"""The cost of one sharpened decoding step over a long cache, beside plain decoding.

One query of 32 heads against 8 key heads of bf16 keys and values on a GPU. Diffuse rows are those
of random queries; a sharp row's query is aligned with one of the keys, at two strengths: "sharp"
leaves a row in four more than 2⁻¹⁶ of its weight elsewhere, "sharper" none. Plain decoding is each
SDPA backend that takes the call, the query heads that share a key head stacked as its queries too,
and the fastest of them all is the yardstick. Every candidate is captured in a graph and replayed,
so that its launches cost no time of the host.

    python benchmarks/decode.py           writes benchmarks/results/<device>/decode.csv
"""

from collections.abc import Callable
from typing import Any

import torch
from measure import BACKENDS, in_turn, keep, summary
from torch import Tensor
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import sharpmax
from sharpmax.torch import attention

HEADS, KEY_HEADS, WIDTH = 32, 8, 128
LENGTHS = (8192, 32768, 131072)
ALIGNED = {"sharp": 2.5, "sharper": 4.0}


def by_backend(backend: Any, query: Tensor, key: Tensor, value: Tensor) -> Callable[[], Tensor]:
    def call() -> Tensor:
        with sdpa_kernel([backend]):
            return scaled_dot_product_attention(query, key, value, enable_gqa=True)

    return call


def stacked(backend: Any, query: Tensor, key: Tensor, value: Tensor) -> Callable[[], Tensor]:
    rows = query.view(1, KEY_HEADS, HEADS // KEY_HEADS, WIDTH)

    def call() -> Tensor:
        with sdpa_kernel([backend]):
            return scaled_dot_product_attention(rows, key, value)

    return call


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """Return the replay of the call as one graph."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def measure(keys: int, kind: str) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    key, value = (
        torch.randn(1, KEY_HEADS, keys, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in "kv"
    )
    query = torch.randn(1, HEADS, 1, WIDTH, device="cuda", dtype=torch.bfloat16)
    if kind in ALIGNED:
        places = torch.randint(keys, (HEADS,), device="cuda")
        group = torch.arange(HEADS, device="cuda") // (HEADS // KEY_HEADS)
        query = ALIGNED[kind] * key[0, group, places][None, :, None]
    calls: dict[str, Callable[[], object]] = {}
    for backend in BACKENDS:
        for how in (by_backend, stacked):
            try:
                name = f"sdpa {backend.name.lower()}, {how.__name__.replace('_', ' ')}"
                calls[name] = captured(how(backend, query, key, value))
            except RuntimeError:
                continue  # this backend does not take the call
    ours = {
        "sharpmax PAPER": {},
        "sharpmax PAPER, nothing left out": {"lost": 0.0},
        "sharpmax LogLength": {"policy": sharpmax.LogLength(2048, 0.2)},
    }
    for name, settings in ours.items():
        calls[name] = captured(lambda settings=settings: attention(query, key, value, **settings))
    times = in_turn(calls)
    plain = {name: values for name, values in times.items() if name.startswith("sdpa")}
    fastest = min(plain, key=lambda name: sorted(plain[name])[len(plain[name]) // 2])
    rows = [
        {
            "candidate": name,
            "rows": kind,
            "heads": HEADS,
            "key_heads": KEY_HEADS,
            "keys": keys,
            "width": WIDTH,
            "dtype": "bfloat16",
            "yardstick": fastest,
            **summary(times[name], times[fastest]),
        }
        for name in calls
    ]
    for row in rows:
        print(keys, kind, row["candidate"], row["p50_ms"], "ms, ratio", row["ratio"])
    return rows


if __name__ == "__main__":
    cases = [(keys, kind) for keys in LENGTHS for kind in ("diffuse", *ALIGNED)]
    keep("decode", [row for case in cases for row in measure(*case)])
