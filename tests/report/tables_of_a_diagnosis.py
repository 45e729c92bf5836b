"""The table of a diagnosis, made up: heads of every kind, and what they would measure."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Row = dict[str, Any]

# kind: entropy at 64 tokens, its growth with ln n, weight on the first token, on the last 32, δ
KINDS = {
    "sink": (0.7, 0.05, 0.8, 0.1, 15.0),
    "local": (1.6, 0.03, 0.1, 0.75, 11.0),
    "sharp": (0.5, 0.02, 0.05, 0.2, 19.0),
    "steady": (2.2, 0.12, 0.2, 0.25, 9.0),
    "disperses": (2.7, 0.78, 0.15, 0.15, 5.5),
}


def rows_of_a_diagnosis(
    cases: Sequence[str] = ("plain",),
    lengths: Sequence[int] = tuple(64 * 2**k for k in range(8)),
    layers: int = 30,
    heads: int = 9,
) -> list[Row]:
    """Return a row for each case, length, layer and head; each case is sharper than the last."""
    rng = np.random.default_rng(0)
    shares = (0.35, 0.3, 0.07, 0.05, 0.23)
    kinds = rng.choice(list(KINDS), (layers, heads), p=shares)
    noise = rng.normal(0, 1, (layers, heads))
    return [
        row_of_a_head(case, 1 + 0.5 * number, n, layer, head, str(kinds[layer, head]),
                      float(noise[layer, head]))
        for number, case in enumerate(cases)
        for n in lengths
        for layer in range(layers)
        for head in range(heads)
    ]  # fmt: skip


def row_of_a_head(
    case: str, beta: float, n: int, layer: int, head: int, kind: str, noise: float
) -> Row:
    low, slope, first, near, spread = KINDS[kind]
    spread = max(2.0, spread + 1.5 * noise + 0.3 * math.log(n / 64))
    entropy = (low + 0.35 * noise + (slope + 0.05 * noise) * math.log(n / 64)) / beta
    entropy = min(max(entropy, 0.05), 0.98 * math.log(n))
    bound = min(1.0, math.exp(beta * spread) / n)
    return {
        "case": case,
        "length": n,
        "layer": layer,
        "head": head,
        "rows": n // 2,
        "entropy": entropy,
        "share": entropy / math.log(n),
        "largest": min(bound, math.exp(-0.6 * entropy)),
        "first": min(1.0, max(0.0, first + 0.08 * noise)),
        "near": min(1.0, max(0.0, near + 0.08 * noise)),
        "beta": beta,
        "spread": spread,
        "bound": bound,
        "half_length": math.inf if noise > 2.5 else 2 * math.exp(beta * spread),
        "kind": kind,
    }
