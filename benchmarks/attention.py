"""The cost of sharpened attention beside the fastest plain attention on the same device.

For every shape, in one run and in turn: PyTorch's SDPA (its fastest backend), the row statistics
alone, `sharpmax.torch.attention` with the paper's policy, both backward passes, and the published
formulation with the matrix materialised where it fits. Times are medians with p20 and p80 (on a
GPU of ten calls each);
ratios are medians of the ratios of a round. Memory is the peak beyond inputs and SDPA's own.

    python benchmarks/attention.py        writes benchmarks/results/<device>/attention.csv
"""

import csv
import math
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import sharpmax
from sharpmax.torch import attention, row_statistics

CUDA = torch.cuda.is_available()
NAME = torch.cuda.get_device_name().split()[-1].lower() if CUDA else "cpu"
RESULT = Path(__file__).parent / "results" / NAME / "attention.csv"
PLACE = "cuda" if CUDA else "cpu"
DTYPE = torch.bfloat16 if CUDA else torch.float32
SHAPES = (  # heads, length, width
    [(32, 8192, 128), (8, 32768, 128), (32, 8192, 64), (8, 32768, 64)]
    if CUDA
    else [(4, 4096, 64), (2, 8192, 64)]
)
ROUNDS, CALLS = (20, 10) if CUDA else (7, 1)
BACKENDS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def sdpa(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with sdpa_kernel(BACKENDS, set_priority=True):
        return scaled_dot_product_attention(query, key, value, is_causal=True)


def sharpened(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return attention(query, key, value, is_causal=True)


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


def milliseconds(call: Callable[[], object]) -> float:
    if not CUDA:
        start = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - start)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(CALLS):  # launched ahead, so that the launches cost no time of the device
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / CALLS


def peak_bytes(call: Callable[[], object]) -> int | None:
    """Return the peak of allocated memory during a call, above what was there before."""
    if not CUDA:
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated() - before


def measure(heads: int, length: int, width: int) -> list[dict[str, object]]:
    torch.manual_seed(0)
    tensors = [torch.randn(1, heads, length, width, device=PLACE, dtype=DTYPE) for _ in "qkv"]
    query, key, _ = tensors
    calls: dict[str, tuple[str, Callable[[], object]]] = {
        "sdpa": ("sdpa", lambda: sdpa(*tensors)),
        "row statistics": ("sdpa", lambda: row_statistics(query, key, is_causal=True)),
        "sharpmax PAPER": ("sdpa", lambda: sharpened(*tensors)),
        "sdpa backward": ("sdpa backward", backward(sdpa, tensors)),
        "sharpmax PAPER backward": ("sdpa backward", backward(sharpened, tensors)),
    }
    if heads * length**2 <= 2**31:
        calls["published, materialised"] = ("sdpa", lambda: published(*tensors))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(ROUNDS + 2):
        for name, (_, call) in calls.items():
            elapsed = milliseconds(call)
            if round_ >= 2:
                times[name].append(elapsed)
    rows = []
    plain_peak = peak_bytes(calls["sdpa"][1])
    for name, (yardstick, call) in calls.items():
        values = sorted(times[name])
        peak = peak_bytes(call)
        ratios = [a / b for a, b in zip(times[name], times[yardstick], strict=True)]
        rows.append(
            {
                "candidate": name,
                "heads": heads,
                "length": length,
                "width": width,
                "causal": True,
                "dtype": str(DTYPE).removeprefix("torch."),
                "p20_ms": round(values[len(values) // 5], 3),
                "p50_ms": round(statistics.median(values), 3),
                "p80_ms": round(values[len(values) * 4 // 5], 3),
                "yardstick": yardstick,
                "ratio": round(statistics.median(ratios), 3),
                "bytes_a_row_beyond_sdpa": ""
                if peak is None or plain_peak is None or "backward" in name
                else round((peak - plain_peak) / (heads * length), 1),
                "device": torch.cuda.get_device_name() if CUDA else f"{platform.machine()} CPU",
                "versions": f"torch {torch.__version__}, sharpmax {sharpmax.__version__}",
                "date": datetime.now(UTC).date().isoformat(),
            }
        )
        print(
            {k: rows[-1][k] for k in ("candidate", "heads", "length", "width", "p50_ms", "ratio")}
        )
    return rows


def main() -> None:
    rows = [row for shape in SHAPES for row in measure(*shape)]
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    with RESULT.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
