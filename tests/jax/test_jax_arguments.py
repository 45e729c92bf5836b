"""What attention in JAX takes: what JAX's own takes, and an error that names what it does not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sharpmax
from sharpmax import PAPER, EntropyCap, Fixed, LogLength, LogLinear, PerHead
from sharpmax.jax import attention, flash, row_statistics
from sharpmax.jax.flax import attention_fn

B, T, S, N, K, H = 2, 5, 6, 4, 2, 8
RNG = np.random.default_rng(0)
Q, KEY, V = (
    jnp.asarray(RNG.normal(size=shape), jnp.float32)
    for shape in ((B, T, N, H), (B, S, K, H), (B, S, K, H))
)


def same_as_jaxs_own(query, key, value, **settings):
    ours = jax.jit(functools.partial(attention, policy=Fixed(1.0), **settings))
    theirs = jax.jit(functools.partial(jax.nn.dot_product_attention, **settings))
    np.testing.assert_allclose(ours(query, key, value), theirs(query, key, value), atol=2e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mask": np.tri(T, S, dtype=bool), "bias": np.ones((N, T, 1), np.float32)},
        {"mask": np.ones((1, 1, T, S), bool), "key_value_seq_lengths": np.array([3], np.int32)},
    ],
)
def test_a_sequence_without_a_batch(settings):
    one = Q[0], KEY[0], V[0]
    same_as_jaxs_own(*one, **settings)
    _, rows = attention(*one, return_statistics=True)
    assert rows.entropy.shape == row_statistics(*one[:2]).entropy.shape == (N, T)


@pytest.mark.parametrize(
    "settings",
    [
        {"mask": np.tri(T, S, dtype=bool), "bias": np.ones((N, 1, 1), np.float32)},
        {"bias": np.arange(S)},
        {"scale": np.float32(0.3)},
        {"scale": np.array(0.3)},
        {"scale": jnp.float32(0.3)},
        {"local_window_size": (np.int64(2), 1), "is_causal": np.bool_(True)},
    ],
    ids=str,
)
def test_it_takes_what_jaxs_own_takes(settings):
    same_as_jaxs_own(Q, KEY, V, **settings)


def test_a_scale_can_be_learnt():
    def learnt(attention):
        return jax.jit(jax.value_and_grad(lambda s: (attention(Q, KEY, V, scale=s) ** 2).sum()))

    ours, theirs = functools.partial(attention, policy=Fixed(1.0)), jax.nn.dot_product_attention
    np.testing.assert_allclose(learnt(ours)(0.3), learnt(theirs)(0.3), rtol=1e-4)


def test_kernels_leave_a_scale_that_is_traced_to_chunks(monkeypatch):
    monkeypatch.setattr(flash, "refusal_of_device", lambda: None)
    half = [x.astype(jnp.bfloat16) for x in (Q, KEY, V)]
    for name in ("pallas", "cudnn"):
        with pytest.raises(NotImplementedError, match="takes a scale that is a Python number"):
            jax.eval_shape(lambda s, n=name: attention(*half, scale=s, implementation=n), 0.3)
    jax.eval_shape(lambda s: attention(*half, scale=s), 0.3)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("lowest", ["-inf", "most negative"])
def test_a_bias_hides_as_a_mask_does(dtype, lowest):
    mask = jnp.arange(S)[None, None, None] < 4
    hidden = -jnp.inf if lowest == "-inf" else jnp.finfo(dtype).min
    bias = jnp.where(mask, 0, hidden).astype(dtype)
    arrays = [x.astype(dtype) for x in (Q, KEY, V)]
    call = functools.partial(attention, policy=LogLength(2, 1.0), return_statistics=True)
    jax.tree.map(np.testing.assert_array_equal, call(*arrays, bias), call(*arrays, mask=mask))


@pytest.mark.parametrize(
    "policy", [PAPER, EntropyCap(0.5), PerHead(LogLength(2, 0.0), {"slope": [0.1] * N})], ids=str
)
def test_ranks_need_not_be_promoted(policy):
    lengths = {"query_seq_lengths": jnp.array([5, 3]), "key_value_seq_lengths": jnp.array([6, 2])}
    with jax.numpy_rank_promotion("raise"):
        settings = {"is_causal": True, "local_window_size": 2, **lengths}
        jax.eval_shape(functools.partial(attention, policy=policy, **settings), Q, KEY, V)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"query": None}, TypeError, "query must be an array, got NoneType"),
        ({"query": np.zeros((T, H), np.float32)}, ValueError, "query must have shape"),
        (
            {"query": np.zeros((B, T, N, H), int)},
            TypeError,
            "query must be one of float64, float32",
        ),
        ({"query": jnp.zeros((B, T, N, H), jnp.float8_e5m2)}, TypeError, "got float8_e5m2"),
        ({"query": Q[..., :0], "key": KEY[..., :0]}, ValueError, "query must have a width of"),
        ({"query": Q[0]}, ValueError, "key must have the batch size of query, 1, got 2"),
        ({"key": np.zeros((B, S, 3, H), np.float32)}, ValueError, "multiple of the 3 heads"),
        ({"key": np.zeros((B, S, K, 4), np.float32)}, ValueError, "the width of query, 8, got 4"),
        ({"key": np.zeros((1, S, K, H), np.float32)}, ValueError, "the batch size of query, 2"),
        ({"key": np.zeros((B, S, K, H), np.float16)}, ValueError, "dtype of query, float32"),
        ({"value": np.zeros((B, 3, K, H), np.float32)}, ValueError, "value must have shape"),
        ({"value": "v"}, TypeError, "value must be an array, got str"),
        ({"mask": np.zeros((B, 1, T, S), np.float32)}, TypeError, "mask must be a boolean array"),
        ({"mask": np.zeros((T, 3), bool)}, ValueError, "mask must have axes that broadcast"),
        ({"mask": np.zeros((1, 1, 1, T, S), bool)}, ValueError, "mask must have axes that"),
        ({"bias": np.zeros((1, 3, T, S), np.float32)}, ValueError, "bias must have axes that"),
        ({"bias": np.zeros((T, S), bool)}, TypeError, "bias must be .* got bool"),
        ({"bias": np.zeros((T, S), complex)}, TypeError, "bias must be .* got complex"),
        ({"key_value_seq_lengths": np.zeros(3, int)}, ValueError, "whole numbers of shape"),
        ({"scale": "a"}, TypeError, "scale must be a number, got 'a'"),
        ({"scale": 1j}, TypeError, "scale must be a number, got 1j"),
        ({"scale": np.ones(2)}, TypeError, "scale must be a number, got array"),
        ({"scale": float("nan")}, ValueError, "scale must be a number, got NaN"),
        ({"is_causal": "no"}, TypeError, "is_causal must be True or False .* got str"),
        ({"is_causal": jnp.array(True)}, TypeError, "is_causal must be True or False"),
        *(
            ({"local_window_size": size}, ValueError, "local_window_size must be a whole number")
            for size in ((-1, 2), -1, (1, 2, 3), (1,), 2.0, (1.5, 2), True, "ab", (None, 0))
        ),
        ({"local_window_size": jnp.int32(2)}, ValueError, "local_window_size must be a whole"),
        *(
            ({"implementation": name}, ValueError, "one of reference, chunked, cudnn, pallas")
            for name in ("xla", 3, [])
        ),
        ({"policy": "paper"}, TypeError, "policy must be a sharpmax.Policy"),
    ],
)
def test_what_does_not_fit_is_named_when_it_is_traced(change, error, message):
    with pytest.raises(error, match=message):
        attention(**{"query": Q, "key": KEY, "value": V} | change)


@pytest.mark.parametrize("name", ["local_window_size", "is_causal"])
def test_what_must_be_known_when_a_call_is_traced(name):
    with pytest.raises((TypeError, ValueError), match=f"{name} must be"):
        jax.eval_shape(lambda given: attention(Q, KEY, V, **{name: given}), 1)


def test_a_policy_that_sets_the_sink_apart_is_for_the_softmax_alone():
    policy = LogLinear(4, 0.2, sink_apart=True, sink=-1.0)
    for refused in (lambda: attention(Q, KEY, V, policy=policy), lambda: attention_fn(policy)):
        with pytest.raises(NotImplementedError, match="cannot set a row's sink apart"):
            refused()
    weights = jax.jit(lambda x: sharpmax.softmax(x, policy))(KEY)
    np.testing.assert_allclose(weights, sharpmax.softmax(np.asarray(KEY), policy), atol=1e-6)
