"""What the benchmarks share: timing in turn, peaks of memory, and the table that is kept."""

import csv
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import sharpmax

CUDA = torch.cuda.is_available()
PLACE = "cuda" if CUDA else "cpu"
NAME = torch.cuda.get_device_name().split()[-1].lower() if CUDA else "cpu"
RESULTS = Path(__file__).parent / "results" / NAME
WARM_UP, ROUNDS = 2, 20 if CUDA else 7
LEAST_MS, MOST_CALLS = 20.0, 20
BACKENDS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def sdpa(query: Tensor, key: Tensor, value: Tensor, **settings: Any) -> Tensor:
    """Attend by PyTorch's fastest kernel."""
    with sdpa_kernel(BACKENDS, set_priority=True):
        return scaled_dot_product_attention(query, key, value, **settings)


def timed(call: Callable[[], object], calls: int = 1) -> float:
    """Return the milliseconds of one call; on a GPU, of several launched one after another."""
    if not CUDA:
        start = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - start)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / calls


def in_turn(calls: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Time all calls round after round, so that each meets the same disturbances."""
    repeats = {}
    for name, call in calls.items():
        timed(call)
        repeats[name] = max(1, min(MOST_CALLS, round(LEAST_MS / timed(call)))) if CUDA else 1
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(WARM_UP + ROUNDS):
        for name, call in calls.items():
            elapsed = timed(call, repeats[name])
            if round_ >= WARM_UP:
                times[name].append(elapsed)
    return times


def summary(times: list[float], yardstick: list[float]) -> dict[str, float]:
    """Return the median and the spread, and the median of the ratios of a round."""
    values = sorted(times)
    ratios = [a / b for a, b in zip(times, yardstick, strict=True)]
    return {
        "p20_ms": round(values[len(values) // 5], 4),
        "p50_ms": round(statistics.median(values), 4),
        "p80_ms": round(values[len(values) * 4 // 5], 4),
        "ratio": round(statistics.median(ratios), 3),
    }


def device_ms(call: Callable[[], object]) -> float:
    """Return how long the kernels of a call take by themselves, on a GPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / 1e3


def peak_bytes(call: Callable[[], object]) -> int:
    """Return how far a call raises the peak of allocated (CPU: resident) memory."""
    if CUDA:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to what is resident now
    before = _resident("VmRSS")
    call()
    return _resident("VmHWM") - before


def _resident(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split(f"{field}:")[1].split()[0])


def circumstances() -> dict[str, str]:
    """Return on what, with what and when it was measured."""
    device = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    return {
        "device": torch.cuda.get_device_name() if CUDA else device,
        "versions": f"torch {torch.__version__}, sharpmax {sharpmax.__version__}",
        "date": datetime.now(UTC).date().isoformat(),
    }


def keep(question: str, rows: list[dict[str, Any]]) -> None:
    """Write the rows to results/<device>/<question>.csv."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    rows = [row | circumstances() for row in rows]
    with (RESULTS / f"{question}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
