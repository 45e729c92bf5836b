"""Row statistics: their values, their gradients and the laws of merging."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from plain_softmax import numpy_softmax

from sharpmax import RowStatistics


def random_logits(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(scale=3, size=shape)


def assert_close(actual: RowStatistics, expected: RowStatistics, atol: float = 1e-9) -> None:
    for name in RowStatistics._fields:
        np.testing.assert_allclose(
            np.asarray(getattr(actual, name)),
            np.asarray(getattr(expected, name)),
            atol=atol,
            err_msg=name,
        )


def test_values(framework):
    logits = random_logits(4, 5, 30)
    p = numpy_softmax(logits)
    statistics = RowStatistics.from_logits(framework.array(logits))
    expected = {
        "max": logits.max(-1),
        "lse": np.log(np.exp(logits).sum(-1)),
        "mean": (p * logits).sum(-1),
        "entropy": -(p * np.log(p)).sum(-1),
        "length": np.full((4, 5), 30.0),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(np.asarray(getattr(statistics, name)), value, rtol=1e-11)


def test_a_mask_and_an_axis(framework):
    logits = random_logits(6, 8)
    where = np.arange(6)[:, None] < np.arange(1, 9)
    statistics = RowStatistics.from_logits(
        framework.array(logits), axis=0, where=framework.array(where)
    )
    for column in range(8):
        visible = logits[where[:, column], column]
        for name, value in RowStatistics.from_logits(visible)._asdict().items():
            actual = np.asarray(getattr(statistics, name))[column]
            np.testing.assert_allclose(actual, value, rtol=1e-12)


def test_a_row_with_nothing_visible(framework):
    statistics = RowStatistics.from_logits(framework.array(np.full((2, 3), -np.inf)))
    assert_close(statistics, RowStatistics.empty_like(np.zeros(2)))


def test_entropy_keeps_its_digits_far_from_zero():
    logits = np.linspace(0, 3, 50, dtype=np.float32)
    expected = RowStatistics.from_logits(logits.astype(np.float64)).entropy
    shifted = RowStatistics.from_logits(np.round(logits * 1024) / 1024 + np.float32(8192))
    np.testing.assert_allclose(shifted.entropy, expected, atol=1e-3)
    assert abs(float(RowStatistics.from_logits(np.float32([9e3, 0, 0])).entropy)) == 0


def test_gradients_are_those_of_the_formulas():
    logits = torch.tensor(random_logits(7), requires_grad=True)
    statistics = RowStatistics.from_logits(logits)
    s = logits.detach()
    p = torch.softmax(s, -1)
    mean = (p * s).sum()
    for value, expected in [
        (statistics.lse, p),
        (statistics.mean, p * (1 + s - mean)),
        (statistics.entropy, -p * (s - mean)),
        (statistics.max, (s == s.max()).double()),
    ]:
        (gradient,) = torch.autograd.grad(value, logits, retain_graph=True)
        torch.testing.assert_close(gradient, expected)


def test_passes_through_jit_vmap_and_compile():
    logits = random_logits(3, 4, 6)
    expected = RowStatistics.from_logits(logits)
    assert_close(jax.jit(RowStatistics.from_logits)(jnp.asarray(logits)), expected)
    assert_close(jax.vmap(RowStatistics.from_logits)(jnp.asarray(logits)), expected)
    by_torch = torch.func.vmap(RowStatistics.from_logits)(torch.tensor(logits))
    assert_close(by_torch, expected)
    torch._dynamo.reset()
    compiled = torch.compile(RowStatistics.from_logits, fullgraph=True, backend="eager")
    assert_close(compiled(torch.tensor(logits)), expected)


# Merging

some_logits = st.one_of(st.floats(-50, 50), st.just(-math.inf))


def row(least: int = 1) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.float64, st.integers(least, 10), elements=some_logits)


@given(row(least=2), st.data())
def test_merging_any_split_is_the_whole(logits, data):
    split = data.draw(st.integers(1, len(logits) - 1))
    parts = [RowStatistics.from_logits(part) for part in (logits[:split], logits[split:])]
    assert_close(parts[0].merge(parts[1]), RowStatistics.from_logits(logits))


@given(row(), row(), row())
def test_merging_is_associative_and_commutative_with_an_identity(first, second, third):
    a, b, c = map(RowStatistics.from_logits, (first, second, third))
    assert_close(a.merge(b).merge(c), a.merge(b.merge(c)))
    assert_close(a.merge(b), b.merge(a), atol=0)
    assert_close(a.merge(RowStatistics.empty_like(a.lse)), a)


def test_merging_in_every_framework_with_gradients(framework):
    logits = random_logits(5, 12)
    logits[0, :6] = -np.inf
    logits[1, :] = -np.inf
    parts = [
        RowStatistics.from_logits(framework.array(part)) for part in (logits[:, :6], logits[:, 6:])
    ]
    assert_close(parts[0].merge(parts[1]), RowStatistics.from_logits(logits))

    leaf = torch.tensor(logits, requires_grad=True)
    merged = RowStatistics.from_logits(leaf[:, :6]).merge(RowStatistics.from_logits(leaf[:, 6:]))
    whole = RowStatistics.from_logits(leaf)
    for name in ("entropy", "lse"):
        gradients = [
            torch.autograd.grad(getattr(x, name)[[0, 2, 3, 4]].sum(), leaf, retain_graph=True)[0]
            for x in (merged, whole)
        ]
        torch.testing.assert_close(*gradients)
        assert gradients[0].isfinite().all()


def test_bad_input_is_named():
    with pytest.raises(TypeError, match="logits must have a real floating dtype"):
        RowStatistics.from_logits(np.arange(3))
