"""A policy made for trained networks: β as a function of the entropy (the paper's Figure 6).

For a set that a network gets wrong, the β that serves the item of the largest priority best is the
one that gives it the most weight. By d ln p_k/dβ = s_k − E_β[s], that is where the mean logit under
softmax(β·s) has risen to the item's own; where the item has the largest logit already, no β is too
large, and the set says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from torch import Tensor

from sharpmax.policies import PAPER, Interpolated, Polynomial
from sharpmax.rows import LogitRows
from sharpmax.statistics import RowStatistics
from sharpmax.tasks.max_retrieval.evaluate import scored

if TYPE_CHECKING:
    from sharpmax.policy import Policy
    from sharpmax.tasks.max_retrieval.data import Sets
    from sharpmax.tasks.max_retrieval.networks import Weights

LARGEST_BETA = 16.0
"""A set that wants more, because the item is all but on top, says as little as one on top."""
HALVINGS = 16
DEGREE = 4
KNOTS = 12
DECIMALS = 3
"""Of the entropies of the knots: two that differ by less are one."""
FEWEST = 40
"""Sets without which no policy is fitted."""

Points = list[tuple[float, float]]
"""Of the entropy and the best β."""


@torch.no_grad()
def best_betas(weights: Weights, sets: Sets) -> Points:
    """Return the entropy and the best β of every set that a network gets wrong and has one."""
    known = scored(weights, sets)
    rows = LogitRows.of(known.logits)
    item = known.of_largest(known.logits)
    wrong = ~known.correct(known.attended(rows.softmax(1.0)))
    beta = _mean_reaches(rows, known.logits, item)
    told = wrong & (item < known.logits.amax(-1)) & (beta < LARGEST_BETA)
    return list(zip(rows.entropy[told].tolist(), beta[told].tolist(), strict=True))


def _mean_reaches(rows: LogitRows, logits: Tensor, level: Tensor) -> Tensor:
    """Return the β at which the mean logit, which rises with β, reaches a level; by bisection."""
    low, high = torch.zeros_like(level), torch.full_like(level, LARGEST_BETA)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = (rows.softmax(middle) * logits).sum(-1) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high


def fit_polynomial(points: Points) -> Polynomial:
    """Return the polynomial of degree 4 through the points, by least squares, as in the paper."""
    entropy, beta = np.array(points).T
    coefficients = np.polynomial.Polynomial.fit(entropy, beta, DEGREE).convert().coef
    highest_first = [float(c) for c in np.pad(coefficients, (0, DEGREE + 1 - len(coefficients)))]
    return Polynomial(tuple(highest_first[::-1]), threshold=PAPER.threshold)


def fit_monotone(points: Points) -> Interpolated:
    """Return a β that never falls with the entropy: the rising line nearest to local medians.

    Beyond the points it keeps the value that it has at the edge.
    """
    ordered = np.array(sorted(points))
    parts = np.array_split(ordered, min(KNOTS, len(points) // 8))
    medians = np.array([np.median(part, axis=0) for part in parts])
    entropies, first = np.unique(medians[:, 0].round(DECIMALS), return_index=True)
    counts = np.array([len(part) for part in parts], dtype=float)[first]
    betas = isotonic_regression(medians[first, 1], weights=counts).x
    return Interpolated(
        tuple(map(float, entropies)), tuple(float(max(beta, 1.0)) for beta in betas)
    )


def curve(policy: Policy, entropies: Sequence[float]) -> list[float]:
    """Return the β of a policy that reads only the entropy, at some entropies."""
    entropy = np.array(entropies)
    unknown = np.full_like(entropy, np.nan)
    betas = policy(RowStatistics(unknown, unknown, entropy, unknown))
    return [float(beta) for beta in np.broadcast_to(betas, entropy.shape)]
