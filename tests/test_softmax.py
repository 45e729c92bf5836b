"""The sharpened softmax: agreement, laws, transformations and hard input."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from plain_softmax import numpy_softmax

import sharpmax
from sharpmax import (
    HELD,
    PAPER,
    EntropyCap,
    Fixed,
    Interpolated,
    LogLength,
    LogLinear,
    PerHead,
    Policy,
    RowStatistics,
    softmax,
)

POLICIES = [
    Fixed(1.0),
    Fixed(2.5),
    PAPER,
    HELD,
    LogLength(4, slope=0.3),
    LogLinear(4, 0.3, sink_apart=True, sink=-0.4, sink_by_length=0.2, sink_log_power=0.1),
    EntropyCap(0.7),
    Interpolated((0.2, 0.8, 1.5), (1.0, 1.5, 3.0)),
    PerHead(LogLength(4, slope=0.0), {"slope": [0.1, 0.4]}),
    PerHead(PAPER, {"coefficients": [[c, c + 0.01] for c in PAPER.coefficients]}),
    PerHead(EntropyCap(1.0), {"nats": [0.5, 1.2]}),
]
every_policy = pytest.mark.parametrize(
    "policy", POLICIES, ids=lambda policy: f"{type(policy).__name__}{POLICIES.index(policy)}"
)


def random_logits(*shape: int, scale: float = 2.0) -> np.ndarray:
    return np.random.default_rng(math.prod(shape)).normal(scale=scale, size=shape)


def formula(logits: np.ndarray, epsilon: float = 0.0) -> np.ndarray:
    """The published formula, written down step by step."""
    p = numpy_softmax(logits)
    log_p = np.log(p + epsilon) if epsilon else np.log(np.where(p > 0, p, 1))
    entropy = -(p * log_p).sum(-1, keepdims=True)
    poly = -0.037 * entropy**4 + 0.481 * entropy**3 - 2.3 * entropy**2 + 4.917 * entropy - 1.791
    beta = np.where(entropy > 0.5, np.maximum(poly, 1.0), 1.0)
    return numpy_softmax(logits * beta.astype(logits.dtype))


# Agreement


@pytest.mark.parametrize("length", [1, 2, 10, 100, 1000])
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_agrees_with_the_formula_in_float64(framework, length, scale):
    logits = random_logits(8, length, scale=scale)
    weights = np.asarray(softmax(framework.array(logits)))
    np.testing.assert_allclose(weights, formula(logits), rtol=0, atol=1e-12)


def test_agrees_with_the_published_float32_form(framework):
    logits = random_logits(32, 200).astype(np.float32)
    weights = np.asarray(softmax(framework.array(logits)))
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, formula(logits, 1e-9), rtol=0, atol=1e-5)


def test_fixed_one_is_the_frameworks_own_softmax(framework):
    logits = framework.array(random_logits(4, 5, 300))
    expected = np.asarray(framework.softmax(logits))
    np.testing.assert_allclose(np.asarray(softmax(logits, Fixed(1.0))), expected, rtol=1e-13)


@every_policy
def test_is_the_same_in_every_framework_and_in_blocks(framework, policy, monkeypatch):
    logits = random_logits(3, 2, 5, 7)
    expected = softmax(logits, policy)
    monkeypatch.setattr("sharpmax.rows.BLOCK_ELEMENTS", 21)
    np.testing.assert_allclose(
        np.asarray(softmax(framework.array(logits), policy)), expected, rtol=1e-11
    )


@every_policy
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_keeps_the_dtype_and_computes_halves_in_float32(framework, policy, dtype):
    logits = random_logits(2, 3, 40).astype(np.float16)
    weights = softmax(framework.array(logits, dtype=getattr(framework, dtype)), policy)
    assert weights.dtype == getattr(framework, dtype)
    expected = softmax(logits.astype(np.float32), policy)
    atol = {"float16": 5e-4, "float32": 1e-6, "float64": 1e-5}[dtype]
    np.testing.assert_allclose(np.asarray(weights, dtype=np.float64), expected, atol=atol)


def test_bfloat16():
    logits = random_logits(4, 64).astype(np.float32)
    for weights in (
        softmax(torch.tensor(logits).bfloat16()).float(),
        softmax(jnp.asarray(logits).astype(jnp.bfloat16)).astype(jnp.float32),
    ):
        np.testing.assert_allclose(np.asarray(weights), formula(logits), atol=2e-2)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_works_along_any_axis(framework, axis):
    logits = random_logits(4, 5, 6)
    expected = np.moveaxis(softmax(np.moveaxis(logits, axis, -1)), -1, axis)
    np.testing.assert_allclose(
        np.asarray(softmax(framework.array(logits), axis=axis)), expected, rtol=1e-12
    )


# Transformations


@every_policy
def test_compiles_in_one_graph(policy):
    torch._dynamo.reset()
    logits = torch.tensor(random_logits(3, 2, 5, 7), requires_grad=True)
    compiled = torch.compile(lambda x: softmax(x, policy), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits), softmax(logits, policy))
    (compiled_gradient,) = torch.autograd.grad(compiled(logits)[..., 0].sum(), logits)
    (gradient,) = torch.autograd.grad(softmax(logits, policy)[..., 0].sum(), logits)
    torch.testing.assert_close(compiled_gradient, gradient)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiles_with_the_default_backend():
    logits = torch.tensor(random_logits(16, 64))
    torch.testing.assert_close(torch.compile(softmax, fullgraph=True)(logits), softmax(logits))


@every_policy
def test_maps_over_a_batch(policy):
    logits = random_logits(3, 2, 5, 7)
    expected = softmax(logits, policy)
    by_torch = torch.func.vmap(lambda x: softmax(x, policy))(torch.tensor(logits))
    by_jax = jax.vmap(lambda x: softmax(x, policy))(jnp.asarray(logits))
    np.testing.assert_allclose(by_torch, expected, rtol=1e-11)
    np.testing.assert_allclose(by_jax, expected, rtol=1e-11)


@every_policy
def test_jits(policy):
    logits = jnp.asarray(random_logits(3, 2, 5, 7))
    jitted = jax.jit(softmax, static_argnames="policy")
    np.testing.assert_allclose(jitted(logits, policy), softmax(logits, policy), rtol=1e-11)


@every_policy
def test_gradient_through_the_policy(policy):
    logits = torch.tensor(random_logits(2, 3, 6), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: softmax(x, policy), (logits,))
    by_jax = jax.grad(lambda x: softmax(x, policy)[..., 0].sum())(jnp.asarray(logits.detach()))
    (by_torch,) = torch.autograd.grad(softmax(logits, policy)[..., 0].sum(), logits)
    np.testing.assert_allclose(by_jax, by_torch, rtol=1e-9, atol=1e-12)


def test_gradient_with_a_mask_and_functorch():
    logits = torch.tensor(random_logits(4, 6))
    where = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)) > 0.4

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (softmax(x, where=where) ** 2).sum()

    gradient = torch.func.grad(loss)(logits)
    leaf = logits.clone().requires_grad_()
    loss(leaf).backward()
    torch.testing.assert_close(gradient, leaf.grad)
    assert (gradient[~where] == 0).all()


def test_gradient_into_a_trained_policy(monkeypatch):
    monkeypatch.setattr("sharpmax.rows.BLOCK_ELEMENTS", 16)
    slope = torch.tensor([0.1, 0.4], dtype=torch.float64, requires_grad=True)
    logits = torch.tensor(random_logits(2, 3, 8))
    weights = softmax(logits, PerHead(LogLength(4, 0.0), {"slope": slope}))
    (gradient,) = torch.autograd.grad(weights[..., 0].sum(), slope)
    assert (gradient != 0).all()


# Laws

rows = arrays(
    np.float64,
    st.tuples(st.integers(1, 4), st.integers(1, 12)),
    elements=st.floats(-30, 30, allow_nan=False),
)
sharpening = st.one_of(
    st.builds(Fixed, st.floats(1, 10)),
    st.sampled_from([PAPER, HELD]),
    st.builds(LogLength, st.floats(1, 20), st.floats(0, 2)),
    st.builds(EntropyCap, st.floats(0.05, 2)),
)


@given(rows, sharpening)
def test_weights_are_a_distribution_that_keeps_the_order(logits, policy):
    weights = softmax(logits, policy)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-12)
    order = np.argsort(logits, axis=-1)
    assert (np.diff(np.take_along_axis(weights, order, -1)) >= 0).all()


@given(rows, sharpening)
def test_entropy_never_rises(logits, policy):
    plain = RowStatistics.from_logits(logits).entropy
    weights = softmax(logits, policy)
    sharp = -np.sum(weights * np.log(np.where(weights > 0, weights, 1)), -1)
    assert (sharp <= plain + 1e-9).all()


@given(rows, st.floats(0.1, 5), st.floats(0.1, 5))
def test_the_largest_weight_grows_with_beta(logits, beta, other):
    low, high = sorted([beta, other])
    largest = [softmax(logits, Fixed(b)).max(-1) for b in (low, high)]
    assert (largest[0] <= largest[1] + 1e-12).all()


@given(rows, sharpening, st.floats(-100, 100))
def test_shifting_all_logits_changes_nothing(logits, policy, shift):
    np.testing.assert_allclose(
        softmax(logits + shift, policy), softmax(logits, policy), rtol=0, atol=1e-6
    )


@given(
    arrays(np.float64, 9, elements=st.floats(-10, 10)),
    arrays(np.bool_, 9).filter(lambda where: where.any()),
    sharpening,
)
def test_masking_equals_removing(logits, where, policy):
    expected = np.zeros(9)
    expected[where] = softmax(logits[where], policy)
    np.testing.assert_allclose(softmax(logits, policy, where=where), expected, atol=1e-9)


# Hard input


@every_policy
@pytest.mark.parametrize("hidden", ["-inf", "lowest", "where"])
def test_each_way_to_mask_equals_removing(framework, policy, hidden):
    logits = random_logits(2, 3, 12).astype(np.float32)
    where = None
    if hidden == "where":
        logits[..., 5:] = np.nan
        where = framework.array(np.arange(12) < 5)
    else:
        logits[..., 5:] = -np.inf if hidden == "-inf" else np.finfo(np.float32).min
    weights = np.asarray(softmax(framework.array(logits), policy, where=where))
    np.testing.assert_allclose(weights[..., :5], softmax(logits[..., :5], policy), rtol=1e-5)
    assert (weights[..., 5:] == 0).all()


@every_policy
@pytest.mark.parametrize("hidden", [-math.inf, np.finfo(np.float32).min])
def test_a_fully_masked_row_is_zeros_with_zero_gradient(policy, hidden):
    logits = random_logits(2, 3, 5).astype(np.float32)
    logits[0, 1] = hidden
    leaf = torch.tensor(logits, requires_grad=True)
    weights = softmax(leaf, policy)
    assert (weights[0, 1] == 0).all()
    (weights**2).sum().backward()
    assert (leaf.grad[0, 1] == 0).all()
    assert leaf.grad.isfinite().all()
    by_jax = jax.grad(lambda x: (softmax(x, policy) ** 2).sum())(jnp.asarray(logits))
    np.testing.assert_allclose(by_jax, leaf.grad, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(softmax(logits, policy), weights.detach(), atol=1e-6)


HARD_ROWS = {
    "length 1": np.zeros((2, 3, 1), np.float32),
    "constant": np.full((2, 3, 9), 7.0, np.float32),
    "one huge": np.where(np.arange(9) == 4, 1e4, random_logits(2, 3, 9)).astype(np.float32),
    "all huge": random_logits(2, 3, 9).astype(np.float32) + np.float32(1e4),
    "huge half": np.where(np.arange(9) == 4, 6e4, random_logits(2, 3, 9)).astype(np.float16),
    "huge and hidden": np.where(np.arange(9) == 4, 1e4, -np.inf)[None, None, :]
    .repeat(3, 1)
    .repeat(2, 0)
    .astype(np.float32),
    "ties at the top": np.tile(np.float32([3, 3, 3, 0, -1]), (2, 3, 1)),
    "widest": np.tile(np.float32([-1.5e38, 0, 1.5e38]), (2, 3, 1)),
}


@every_policy
@pytest.mark.parametrize("name", HARD_ROWS)
def test_hard_rows_have_finite_weights_and_gradients(framework, policy, name):
    logits = HARD_ROWS[name]
    weights = np.asarray(softmax(framework.array(logits), policy), dtype=np.float64)
    tolerance = 1e-2 if logits.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=tolerance)
    leaf = torch.tensor(logits, requires_grad=True)
    softmax(leaf, policy)[..., 0].sum().backward()
    assert leaf.grad.isfinite().all()
    by_jax = jax.grad(lambda x: softmax(x, policy)[..., 0].sum())(jnp.asarray(logits))
    assert jnp.isfinite(by_jax).all()


@every_policy
def test_nan_stays_in_its_row(framework, policy):
    logits = random_logits(2, 3, 5)
    expected = softmax(logits, policy)
    logits[1, 2, 3] = np.nan
    weights = np.asarray(softmax(framework.array(logits), policy))
    assert np.isnan(weights[1, 2]).all()
    others = np.ones((2, 3), bool)
    others[1, 2] = False
    np.testing.assert_allclose(weights[others], expected[others], rtol=1e-11)


@pytest.mark.parametrize("beta", [-3.0, 0.0, 1e-20])
def test_a_beta_that_is_not_positive_is_uniform_over_what_is_visible(framework, beta):
    policy = LogLength(1.0, slope=(beta - 1) / math.log(4))
    logits = framework.array(np.float32([1, 2, 3, 4, -np.inf]))
    weights = np.asarray(softmax(logits, policy))
    np.testing.assert_allclose(weights, [0.25, 0.25, 0.25, 0.25, 0], atol=1e-5)


def test_a_half_precisions_most_negative_number_is_hidden(framework):
    logits = framework.array(np.float16([-65504, -65472, -65472]))
    weights = np.asarray(softmax(logits, Fixed(0.05)), dtype=np.float32)
    np.testing.assert_allclose(weights, [0, 0.5, 0.5])


def test_maps_over_a_mask_alone_in_blocks(monkeypatch):
    monkeypatch.setattr("sharpmax.rows.BLOCK_ELEMENTS", 16)
    logits, where = torch.zeros(30, 10), torch.ones(2, 10, dtype=torch.bool)
    weights = torch.func.vmap(lambda w: softmax(logits, where=w))(where)
    torch.testing.assert_close(weights, torch.full((2, 30, 10), 0.1))


@every_policy
def test_second_derivatives(policy):
    logits = torch.tensor(random_logits(2, 1, 4), requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: softmax(x, policy), (logits,))


@every_policy
def test_no_rows_and_strided_rows(framework, policy):
    assert softmax(framework.array(np.zeros((2, 0, 4))), policy).shape == (2, 0, 4)
    assert softmax(framework.array(np.zeros((0, 2, 3, 4))), policy).shape == (0, 2, 3, 4)
    logits = random_logits(3, 2, 14)
    strided = framework.array(logits).swapaxes(0, 1)[:, :, ::2]
    expected = softmax(np.ascontiguousarray(logits.swapaxes(0, 1)[:, :, ::2]), policy)
    np.testing.assert_allclose(np.asarray(softmax(strided, policy)), expected, rtol=1e-11)


def test_bad_input_is_named(framework):
    good = framework.array(random_logits(2, 3))
    with pytest.raises(ValueError, match=r"empty along axis -1, got shape \(2, 0\)"):
        softmax(framework.array(np.zeros((2, 0))))
    with pytest.raises(ValueError, match="axis must be one of the 2 axes of logits, got 2"):
        softmax(good, axis=2)
    with pytest.raises(TypeError, match="axis must be an int, got None"):
        softmax(good, axis=None)
    with pytest.raises(TypeError, match="logits must have a real floating dtype, got .*int32"):
        softmax(framework.array(np.zeros((2, 3)), dtype=framework.int32))
    with pytest.raises(TypeError, match="policy must be a sharpmax.Policy .* got 2.0"):
        softmax(good, 2.0)
    with pytest.raises(TypeError, match="where must be a boolean array, got dtype"):
        softmax(good, where=good)
    with pytest.raises(ValueError, match=r"where must broadcast to shape \(2, 3\), got shape"):
        softmax(good, where=framework.array(np.ones(4, bool)))


def test_a_list_is_refused():
    with pytest.raises(TypeError, match="logits must be a NumPy, PyTorch or JAX array, got list"):
        softmax([1.0, 2.0])


def test_arrays_that_would_mislead_are_refused():
    with pytest.raises(TypeError, match="logits must not be a masked array"):
        softmax(np.ma.array([1.0, 2.0], mask=[0, 1]))
    with pytest.raises(TypeError, match="where must be a boolean array of the same framework"):
        softmax(torch.zeros(3), where=np.ones(3, bool))


def test_a_new_policy_is_one_short_class():
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class LargestWeight(Policy):
        gain: float
        reads = frozenset({"max", "lse"})

        def __call__(self, rows):
            return 1 + self.gain * (rows.lse - rows.max)

    policy = LargestWeight(0.5)
    logits = random_logits(4, 9)
    p = numpy_softmax(logits)
    beta = 1 - 0.5 * np.log(p.max(-1, keepdims=True))
    np.testing.assert_allclose(softmax(logits, policy), numpy_softmax(logits * beta))
    assert Policy.from_dict(policy.to_dict()) == policy
    assert sharpmax.PerHead(policy, {"gain": [0.1] * 4}).reads == {"max", "lse", "length"}
