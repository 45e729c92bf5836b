"""The paper's bounds, against rows of logits that they must hold for."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sharpmax import Fixed, LogLength, RowStatistics, softmax
from sharpmax.theory import (
    beta_to_keep_weight,
    dispersion_length,
    entropy_slope,
    spread_bound,
    weight_bounds,
)


@given(
    arrays(np.float64, st.integers(1, 30), elements=st.floats(-5, 5)),
    st.floats(0.1, 4),
)
def test_lemma_2_1_holds(logits, beta):
    weights = softmax(logits, Fixed(beta))
    least, largest = weight_bounds(np.ptp(logits), len(logits), beta)
    assert least * (1 - 1e-12) <= weights.min()
    assert weights.max() <= largest * (1 + 1e-12)


def test_theorem_2_2_for_gemma():
    length = dispersion_length(spread=5.69, weight=0.5)
    assert length == pytest.approx(592, abs=1)
    assert weight_bounds(5.69, length)[1] == pytest.approx(0.5)


def test_proposition_3_1_bounds_the_spread(framework):
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 8, 16))
    y, x = rng.normal(size=16), rng.normal(size=(50, 16))
    logits = 0.25 * (q @ y) @ (k @ x.T)
    norms = np.linalg.norm(y), np.linalg.norm(x, axis=1).max()
    bound = spread_bound(framework.array(q), framework.array(k), *norms, scale=0.25)
    assert np.ptp(logits) <= float(bound)
    sigma = [np.linalg.svd(matrix, compute_uv=False)[0] for matrix in (q, k)]
    assert float(bound) == pytest.approx(0.5 * sigma[0] * sigma[1] * norms[0] * norms[1])


def test_proposition_3_2_is_the_derivative_of_the_entropy(framework):
    logits = np.random.default_rng(1).normal(size=(4, 9))
    slope = np.asarray(entropy_slope(framework.array(logits), beta=1.7))
    assert (slope <= 0).all()
    h = 1e-6
    high, low = (RowStatistics.from_logits((1.7 + s) * logits).entropy for s in (h, -h))
    np.testing.assert_allclose(slope, (high - low) / (2 * h), rtol=1e-6)


@given(st.integers(2, 500), st.integers(2, 500), st.floats(0.5, 10), st.floats(0.5, 2))
def test_beta_keeps_the_weight_of_an_item_that_stands_out(length, reference, spread, beta):
    def weight(n: int, b: float) -> float:
        logits = np.zeros(n)
        logits[0] = spread
        return softmax(b * logits, Fixed(1.0))[0]

    kept = beta_to_keep_weight(length, reference, spread, beta)
    assert weight(length, kept) == pytest.approx(weight(reference, beta), rel=1e-9)


def test_log_length_follows_it():
    lengths = np.array([2.0**12, 2.0**17])
    statistics = RowStatistics(lengths, lengths, lengths, lengths)
    kept = beta_to_keep_weight(lengths, 1024, 6.0)
    np.testing.assert_allclose(LogLength(1024, slope=1 / 6)(statistics), kept, rtol=1e-3)


def test_arrays_of_any_framework(framework):
    lengths = framework.array(np.array([16.0, 1024.0]))
    least, largest = weight_bounds(3.0, lengths)
    np.testing.assert_allclose(np.asarray(largest), math.exp(3) / np.array([16, 1024]))
    np.testing.assert_allclose(np.asarray(least), math.exp(-3) / np.array([16, 1024]))
    spreads = framework.array(np.array([1.0, 2.0]))
    np.testing.assert_allclose(np.asarray(dispersion_length(spreads, 0.5)), 2 * np.exp([1, 2]))


def test_a_spread_without_limit_has_no_bound():
    assert dispersion_length(1e4, 0.5) == math.inf
    assert weight_bounds(1e4, 10) == (0.0, math.inf)


def test_gradients_pass():
    spread = torch.tensor(2.0, requires_grad=True)
    (gradient,) = torch.autograd.grad(dispersion_length(spread, 0.5), spread)
    assert gradient == pytest.approx(2 * math.exp(2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: weight_bounds(-1, 10), "spread must be at least 0, got -1"),
        (lambda: weight_bounds(math.nan, 10), "spread must be at least 0, got nan"),
        (lambda: weight_bounds(1, 0), "length must be at least 1, got 0"),
        (lambda: dispersion_length(1, 0), "weight must be above 0 and at most 1, got 0"),
        (lambda: dispersion_length(1, 2), "weight must be above 0 and at most 1, got 2"),
        (lambda: beta_to_keep_weight(1, 10, 1.0), "length must be at least 2, got 1"),
        (lambda: beta_to_keep_weight(10, 10, 0.0), "spread must be above 0 .* got 0.0"),
    ],
)
def test_bad_values_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
