"""Tables as a run of max retrieval would leave them, made up from a simple model of its head."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np

import sharpmax
from sharpmax.report.max_retrieval import Tables

Row = dict[str, Any]

ACCURACY = {
    "softmax": (0.990, 0.981, 0.961, 0.921, 0.848, 0.714, 0.548, 0.379, 0.255, 0.195, 0.142),
    "paper": (0.990, 0.981, 0.962, 0.927, 0.867, 0.769, 0.634, 0.478, 0.336, 0.245, 0.174),
    "entropy cap": (0.992, 0.984, 0.970, 0.939, 0.885, 0.798, 0.676, 0.524, 0.393, 0.283, 0.208),
    "argmax": (0.992, 0.984, 0.970, 0.939, 0.885, 0.798, 0.676, 0.525, 0.396, 0.284, 0.209),
}
PUBLISHED = {
    "softmax": (0.986, 0.971, 0.943, 0.897, 0.813, 0.701, 0.538, 0.357, 0.226, 0.157, 0.124),
    "paper": (0.986, 0.971, 0.945, 0.899, 0.821, 0.725, 0.577, 0.394, 0.249, 0.175, 0.140),
}
# How far a policy gets from softmax towards argmax, where the accuracy is not given above.
SHARE = {"held": 0.85, "log length": 0.7, "fitted": 0.6, "monotone": 0.93}
POLICIES: dict[str, sharpmax.Policy] = {
    "softmax": sharpmax.Fixed(1.0),
    "paper": sharpmax.PAPER,
    "held": sharpmax.HELD,
    "log length": sharpmax.LogLength(16, 0.35),
    "fitted": sharpmax.Polynomial((-0.02, 0.3, -1.6, 4.0, -1.4)),
    "monotone": sharpmax.LogLength(8, 0.45),
    "entropy cap": sharpmax.EntropyCap(0.5),
    "argmax": sharpmax.Fixed(1e4),
}


def tables_of_a_run(
    sizes: Sequence[int] = tuple(2**k for k in range(4, 15)),
    seeds: int = 10,
    policies: Sequence[str] = tuple(POLICIES),
    sets: int = 32,
) -> Tables:
    """Return all tables; ten seeds and eleven sizes are what the paper has."""
    rng = np.random.default_rng(0)
    evaluation: list[Row] = []
    attention: list[Row] = []
    for size in sizes:
        logits, norms = head(rng, sets, size)
        for policy in policies:
            weights = sharpmax.softmax(logits, POLICIES.get(policy, sharpmax.HELD))
            evaluation += evaluated(rng, policy, logits, weights, seeds)
            if policy in ("softmax", "paper"):
                attention += kept(policy, norms, weights)
    fit = [
        {"size": size, "entropy": h, "beta": max(1.0, 0.9 + 0.5 * h + rng.normal(0, 0.35))}
        for size in sizes
        for h in rng.normal(0.85 * math.log(size), 0.5, 300).clip(0.2, math.log(size))
    ]
    return Tables(
        evaluation=evaluation,
        comparison=compared(evaluation),
        attention=attention,
        fit=fit,
        curves=curves(),
        training=training(rng, seeds),
        published=[
            {"policy": policy, "size": 2 ** (4 + k), "accuracy": accuracy}
            for policy, row in PUBLISHED.items()
            for k, accuracy in enumerate(row)
        ],
    )


def head(rng: np.random.Generator, sets: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a head's logits over sets of items, the last item the maximum, and its key norms."""
    priority = np.sort(rng.uniform(size=(sets, size)))
    logits = 8 * priority**2 + rng.normal(0, 0.05, (sets, size))
    return logits, priority + rng.normal(0, 0.3 / size, (sets, size))


def evaluated(
    rng: np.random.Generator, policy: str, logits: np.ndarray, weights: np.ndarray, seeds: int
) -> list[Row]:
    size = logits.shape[-1]
    plain = sharpmax.softmax(logits, sharpmax.Fixed(1.0))
    entropy = float(-(weights * np.log(np.maximum(weights, 1e-300))).sum(-1).mean())
    top, bottom = logits.argmax(-1)[:, None], logits.argmin(-1)[:, None]
    spread = float(np.ptp(logits, axis=-1).mean())
    ratio = [np.take_along_axis(np.log(np.maximum(w, 1e-300)), top, -1)
             - np.take_along_axis(np.log(np.maximum(w, 1e-300)), bottom, -1)
             for w in (weights, plain)]  # fmt: skip
    beta = math.inf if policy == "argmax" else float((ratio[0] / ratio[1]).mean())
    k = round(math.log2(size)) - 4
    low, high = ACCURACY["softmax"][k], ACCURACY["argmax"][k]
    exact = (
        ACCURACY[policy][k] if policy in ACCURACY else low + SHARE.get(policy, 0.5) * (high - low)
    )
    return [
        {
            "size": size,
            "seed": seed,
            "policy": policy,
            "accuracy": float(np.clip(exact + 0.02 * math.sin(seed) + rng.normal(0, 0.004), 0, 1)),
            "entropy": entropy,
            "weight": float(weights[:, -1].mean()),
            "beta": beta,
            "spread": spread,
            "bound": min(1.0, math.exp(min(beta * spread, 700)) / size),
        }
        for seed in range(seeds)
    ]


def kept(policy: str, norms: np.ndarray, weights: np.ndarray) -> list[Row]:
    order = np.argsort(-norms, axis=-1)[:, :16]
    return [
        {
            "policy": policy,
            "size": weights.shape[-1],
            "set": number,
            "rank": rank + 1,
            "weight": float(weights[number, item]),
            "is_maximum": bool(item == weights.shape[-1] - 1),
        }
        for number, items in enumerate(order)
        for rank, item in enumerate(items)
    ]


def compared(evaluation: Sequence[Row]) -> list[Row]:
    groups: dict[tuple[str, int], list[float]] = {}
    for row in evaluation:
        groups.setdefault((row["policy"], row["size"]), []).append(row["accuracy"])
    rows = []
    for (policy, size), values in groups.items():
        half = 2.26 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        softmax = groups.get(("softmax", size), values)
        tested = policy != "softmax" and len(values) > 1
        rows.append(
            {
                "size": size,
                "policy": policy,
                "accuracy": fmean(values),
                "low": fmean(values) - half,
                "high": fmean(values) + half,
                "difference": fmean(values) - fmean(softmax),
                "p_value": 0.0004 if tested else None,
            }
        )
    return rows


def curves() -> list[Row]:
    def published(h: float) -> float:
        polynomial = float(np.polyval([-0.037, 0.481, -2.3, 4.917, -1.791], h))
        return max(polynomial, 1.0) if h > 0.5 else 1.0

    shapes: dict[str, Callable[[float], float]] = {
        "published": published,
        "fitted": lambda h: 0.8 + 0.62 * h - 0.008 * h * h,
        "monotone": lambda h: 1.0 + 0.45 * h + 0.15 * math.tanh(h - 3),
    }
    return [
        {"policy": policy, "entropy": h, "beta": shape(h)}
        for policy, shape in shapes.items()
        for h in (0.1 * i for i in range(98))
    ]


def training(rng: np.random.Generator, seeds: int) -> list[Row]:
    return [
        {
            "step": step,
            "seed": seed,
            "loss": 0.05 + 2.2 * math.exp(-step / 6000) * math.exp(rng.normal(0, 0.08)),
            "accuracy": 0.99 - 0.85 * math.exp(-step / 5000) + rng.normal(0, 0.004),
        }
        for seed in range(seeds)
        for step in range(0, 100_001, 500)
    ]
