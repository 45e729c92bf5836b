"""The cost of sharpening beside the framework's plain softmax, in time and memory.

Rows of (4096, 4096) float32 logits on the CPU, PyTorch and JAX in one run; the published
formulation beside ours. The time is the median of many rounds, each of which times all the
candidates once, in turn; p20 and p80 show the spread. The peak is the growth of the process's
resident memory during a second call, in a fresh process for each candidate (Linux only).

    python benchmarks/softmax.py        writes benchmarks/results/cpu/softmax.csv
"""

import csv
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import sharpmax

SHAPE = (4096, 4096)
WARM_UP, ROUNDS = 2, 11
RESULT = Path(__file__).parent / "results" / "cpu" / "softmax.csv"
COEFFICIENTS = sharpmax.PAPER.coefficients


def published_torch(logits: torch.Tensor) -> torch.Tensor:
    """Adaptive temperature as the paper writes it, with every step materialised."""
    p = torch.softmax(logits, dim=-1)
    entropy = -torch.sum(p * torch.log(p + 1e-9), dim=-1, keepdim=True)
    poly = sum(c * entropy**power for power, c in enumerate(reversed(COEFFICIENTS)))
    beta = torch.where(entropy > 0.5, torch.clamp(poly, min=1.0), 1.0)
    return torch.softmax(logits * beta, dim=-1)


def published_jax(logits: jax.Array) -> jax.Array:
    p = jax.nn.softmax(logits, axis=-1)
    entropy = -jnp.sum(p * jnp.log(p + 1e-9), axis=-1, keepdims=True)
    poly = jnp.polyval(jnp.array(COEFFICIENTS), entropy)
    beta = jnp.where(entropy > 0.5, jnp.maximum(poly, 1.0), 1.0)
    return jax.nn.softmax(logits * beta, axis=-1)


def candidates() -> dict[tuple[str, str], Callable[[], Any]]:
    """Every call to measure, by framework and name; the plain softmax is each one's yardstick."""
    logits = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
    t, j = torch.from_numpy(logits), jnp.asarray(logits)
    by_torch = {
        "plain": lambda x: torch.softmax(x, dim=-1),
        "published": published_torch,
        "sharpmax": sharpmax.softmax,
        "sharpmax compiled": torch.compile(sharpmax.softmax),
        "sharpmax Fixed(1)": lambda x: sharpmax.softmax(x, sharpmax.Fixed(1.0)),
        "sharpmax EntropyCap": lambda x: sharpmax.softmax(x, sharpmax.EntropyCap(0.5)),
    }
    by_jax = {
        "plain": jax.nn.softmax,
        "published": published_jax,
        "sharpmax": sharpmax.softmax,
        "sharpmax Fixed(1)": lambda x: sharpmax.softmax(x, sharpmax.Fixed(1.0)),
        "sharpmax EntropyCap": lambda x: sharpmax.softmax(x, sharpmax.EntropyCap(0.5)),
    }
    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    for name, function in by_torch.items():
        calls["torch", name] = lambda function=function: function(t)
    for name, function in by_jax.items():
        jitted = jax.jit(function)
        calls["jax (jit)", name] = lambda jitted=jitted: jitted(j).block_until_ready()
    return calls


def milliseconds(calls: dict[Any, Callable[[], Any]]) -> dict[Any, list[float]]:
    """Time all calls in turn, round after round, so that each meets the same disturbances."""
    times: dict[Any, list[float]] = {name: [] for name in calls}
    for round_ in range(WARM_UP + ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            elapsed = time.perf_counter() - start
            if round_ >= WARM_UP:
                times[name].append(1e3 * elapsed)
    return times


def peak_mib(framework: str, name: str) -> float:
    """Return how far one call raises the peak of resident memory, in a fresh process."""
    command = [sys.executable, __file__, "--peak", framework, name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_peak(framework: str, name: str) -> None:
    call = candidates()[framework, name]
    call()  # compiles, and loads what a first call loads
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to what is resident now
    before = resident_kib("VmRSS")
    call()
    print((resident_kib("VmHWM") - before) / 1024)


def resident_kib(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0])


def main() -> None:
    times = milliseconds(candidates())
    versions = f"torch {torch.__version__}, jax {jax.__version__}, sharpmax {sharpmax.__version__}"
    rows = []
    for (framework, name), values in times.items():
        p20, _, p80 = (float(q) for q in np.percentile(values, [20, 50, 80]))
        plain = times[framework, "plain"]
        ratio = statistics.median(v / p for v, p in zip(values, plain, strict=True))
        rows.append(
            {
                "framework": framework,
                "candidate": name,
                "shape": "x".join(map(str, SHAPE)),
                "dtype": "float32",
                "p20_ms": round(p20, 2),
                "p50_ms": round(statistics.median(values), 2),
                "p80_ms": round(p80, 2),
                "ratio_to_plain": round(ratio, 2),
                "peak_mib": round(peak_mib(framework, name)),
                "device": f"{platform.machine()} CPU, {torch.get_num_threads()} threads",
                "versions": versions,
                "date": datetime.now(UTC).date().isoformat(),
            }
        )
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    with RESULT.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    shown = ("framework", "candidate", "p20_ms", "p50_ms", "p80_ms", "ratio_to_plain", "peak_mib")
    table = Table(*shown, title=f"softmax of {SHAPE} float32")
    for row in rows:
        table.add_row(*(str(row[column]) for column in shown))
    Console().print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        print_peak(*sys.argv[2:])
    else:
        main()
