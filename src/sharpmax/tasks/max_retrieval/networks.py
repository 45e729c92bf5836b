"""The max-retrieval networks of all seeds, side by side: every weight has a leading seed axis.

Items x and the query y are embedded by two-layer GELU networks, one head attends from y to the
items, and a two-layer network names the class:

    logits = (y·Q)·(x·K)ᵀ/√d,    answer = head(Σ softmax(logits)·x·V).

There is one query a set, so Q·Kᵀ is applied to it and V to the attended mean, once a set and not
once an item: the same function at a third of the products.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import gelu

from sharpmax.tasks.max_retrieval.data import CLASSES, FEATURES

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 128
LAYERS = {
    "item.1": (FEATURES, WIDTH),
    "item.2": (WIDTH, WIDTH),
    "query.1": (1, WIDTH),
    "query.2": (WIDTH, WIDTH),
    "head.1": (WIDTH, WIDTH),
    "head.2": (WIDTH, CLASSES),
}
"""The layers with a bias, and what they lead from and to."""
PROJECTIONS = ("attention.q", "attention.k", "attention.v")

Weights = dict[str, Tensor]
"""Of all seeds, by name."""


def initial_weights(seeds: Sequence[int], *, ssmax: bool = False) -> Weights:
    """Return fresh weights, each seed's the same whichever others are beside it.

    Args:
        seeds: One network for each.
        ssmax: Whether the networks learn the s of SSMax, whose logits are s·ln(n)·s_j. It
            starts where sets of 16 are scaled by 1.
    """
    networks = [_initial(torch.Generator().manual_seed(seed)) for seed in seeds]
    weights = {name: torch.stack([network[name] for network in networks]) for name in networks[0]}
    if ssmax:
        weights["attention.s"] = torch.full((len(networks),), 1 / math.log(16))
    return weights


def _initial(generator: torch.Generator) -> Weights:
    """Return one network: normal weights of variance 1/inputs, and biases of 0."""
    shapes = LAYERS | dict.fromkeys(PROJECTIONS, (WIDTH, WIDTH))
    weights = {
        f"{name}.weight": torch.randn(shape, generator=generator) / math.sqrt(shape[0])
        for name, shape in shapes.items()
    }
    biases = {f"{name}.bias": torch.zeros(shape[1]) for name, shape in LAYERS.items()}
    return weights | biases


def embed(weights: Weights, kind: str, inputs: Tensor) -> Tensor:
    """Return the embedding of items, or of queries, of shape (seeds, any, width)."""
    return gelu(_layer(weights, f"{kind}.2", gelu(_layer(weights, f"{kind}.1", inputs))))


def directions(weights: Weights, query: Tensor, size: int) -> Tensor:
    """Return what an item's embedding is multiplied by to give its logit: y·Q·Kᵀ/√d."""
    y = embed(weights, "query", query)
    q = y @ weights["attention.q.weight"]
    direction = q @ weights["attention.k.weight"].mT / math.sqrt(WIDTH)
    if "attention.s" in weights:
        direction = direction * (weights["attention.s"][:, None, None] * math.log(size))
    return direction


def keys(weights: Weights, embedded: Tensor) -> Tensor:
    """Return the items' keys x·K, which only a figure needs."""
    return embedded @ weights["attention.k.weight"]


def answers(weights: Weights, attended: Tensor) -> Tensor:
    """Return the logits of the classes from the attended mean of the embeddings."""
    value = attended @ weights["attention.v.weight"]
    return _layer(weights, "head.2", gelu(_layer(weights, "head.1", value)))


def _layer(weights: Weights, name: str, inputs: Tensor) -> Tensor:
    bias, weight = weights[f"{name}.bias"], weights[f"{name}.weight"]
    return torch.baddbmm(bias[:, None], inputs, weight)
