"""Attention in JAX: against JAX's own, against the definition, and its gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import sharpmax
from sharpmax import HELD, PAPER, Detached, EntropyCap, Fixed, LogLength, PerHead
from sharpmax.jax import attention, chunked, row_statistics

B, T, S, N, K, H = 2, 19, 19, 4, 2, 8
POLICIES = {
    "paper": PAPER,
    "held": HELD,
    "log length": LogLength(4, 0.3),
    "entropy cap": EntropyCap(0.7),
    "per head": PerHead(LogLength(4, 0.0), {"slope": [0.0, 0.1, 0.2, 0.3]}),
    "detached": Detached(PAPER),
}
CALLS = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"local_window_size": (3, 1)},
    "causal window": {"is_causal": True, "local_window_size": 4},
    "lengths": {
        "query_seq_lengths": np.array([19, 7], np.int32),
        "key_value_seq_lengths": np.array([5, 19], np.int32),
    },
    "mask": {"mask": np.random.default_rng(1).random((B, 1, T, S)) < 0.8},
    "bias": {"bias": np.random.default_rng(2).normal(size=(1, N, T, S)).astype(np.float32)},
    "padding": {"mask": np.arange(S)[None, None, None, :] < np.array([S, 9])[:, None, None, None]},
    "scale": {"scale": 0.9},
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Let a few queries be a chunk, so that there are several, the last not full."""
    monkeypatch.setattr(chunked, "CHUNK_ELEMENTS", B * N * S * 7)
    monkeypatch.setattr(chunked, "SEGMENTS", 2)


def arrays(dtype=jnp.float32, queries=T, keys=S, width=H, value_width=H):
    rng = np.random.default_rng(0)
    shapes = (B, queries, N, width), (B, keys, K, width), (B, keys, K, value_width)
    return [jnp.asarray(2 * rng.normal(size=shape), dtype) for shape in shapes]


@pytest.mark.parametrize("implementation", ["reference", "chunked"])
@pytest.mark.parametrize("call", CALLS)
def test_with_beta_1_it_is_jaxs_own(call, implementation):
    q, k, v = arrays()
    settings = {
        name: jnp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in CALLS[call].items()
    }
    wanted = jax.nn.dot_product_attention(q, k, v, **settings)
    out = attention(q, k, v, **settings, policy=Fixed(1.0), implementation=implementation)
    rows = row_statistics(q, k, **settings)
    seen = np.asarray(jnp.moveaxis(rows.length, 1, 2) > 0)
    np.testing.assert_allclose(np.asarray(out)[seen], np.asarray(wanted)[seen], atol=2e-5)
    np.testing.assert_array_equal(np.asarray(out)[~seen], 0)


@pytest.mark.parametrize("queries", [1, 5, 25])
def test_other_numbers_of_queries_than_keys(queries):
    q, k, v = arrays(queries=queries)
    for causal in (False, True):
        out = attention(q, k, v, is_causal=causal, policy=Fixed(1.0))
        wanted = jax.nn.dot_product_attention(q, k, v, is_causal=causal)
        np.testing.assert_allclose(out, wanted, atol=2e-5)


@pytest.mark.parametrize(
    ("call", "policy"),
    [*((call, "paper") for call in CALLS), *(("causal", policy) for policy in POLICIES)],
)
def test_chunks_are_the_definition(call, policy):
    q, k, v = arrays(value_width=5)
    both = [
        attention(
            q,
            k,
            v,
            **CALLS[call],
            policy=POLICIES[policy],
            implementation=i,
            return_statistics=True,
        )
        for i in ("chunked", "reference")
    ]
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5, rtol=2e-5), *both)


def test_against_the_core_in_float64():
    with jax.enable_x64(True):
        q, k, v = arrays(jnp.float64)
        out = attention(q, k, v, is_causal=True)
        logits = np.einsum("bthd,bshd->bhts", q, np.repeat(k, N // K, 2)) / np.sqrt(H)
        logits = np.where(np.tril(np.ones((T, S), bool)), logits, -np.inf)
        weights = sharpmax.softmax(logits, PAPER)
        wanted = np.einsum("bhts,bshd->bthd", weights, np.repeat(v, N // K, 2))
        np.testing.assert_allclose(out, wanted, atol=1e-12)


def test_half_precision_is_as_good_as_the_materialised_form():
    exact = [np.asarray(x, np.float32) for x in arrays(jnp.bfloat16)]
    wanted = attention(*exact, is_causal=True, implementation="reference")
    half = [jnp.asarray(x, jnp.bfloat16) for x in exact]
    out = attention(*half, is_causal=True)
    assert out.dtype == jnp.bfloat16
    assert float(jnp.abs(out.astype(jnp.float32) - wanted).max()) < 0.03


@pytest.mark.parametrize("policy", ["paper", "log length", "entropy cap"])
@pytest.mark.parametrize("implementation", ["chunked", "reference"])
def test_gradients(policy, implementation):
    with jax.enable_x64(True):
        q, k, v = (x[:1, :7] for x in arrays(jnp.float64))
        bias = jnp.asarray(np.random.default_rng(3).normal(size=(1, N, 7, 7)))

        def call(q, k, v, bias):
            return attention(
                q,
                k,
                v,
                bias,
                is_causal=True,
                policy=POLICIES[policy],
                implementation=implementation,
            )

        check_grads(call, (q, k, v, bias), order=1, modes=["rev"], atol=1e-5, rtol=1e-5)


def test_under_jit_vmap_and_checkpoint():
    q, k, v = arrays()
    wanted = attention(q, k, v, is_causal=True)
    call = functools.partial(attention, is_causal=True)
    np.testing.assert_allclose(jax.jit(call)(q, k, v), wanted, atol=1e-5)
    np.testing.assert_allclose(jax.checkpoint(call)(q, k, v), wanted, atol=1e-5)
    one_by_one = jax.vmap(lambda *x: call(*(y[None] for y in x))[0])(q, k, v)
    np.testing.assert_allclose(one_by_one, wanted, atol=1e-5)


def test_equal_shapes_are_traced_once():
    traced = 0

    @jax.jit
    def call(x):
        nonlocal traced
        traced += 1
        return sharpmax.softmax(x, PAPER)

    for seed in range(3):
        call(jnp.asarray(np.random.default_rng(seed).normal(size=(4, 50)), jnp.float32))
    assert traced == 1


def test_memory_is_linear_in_the_length(monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK_ELEMENTS", 2**20)

    def temporary(n: int) -> int:
        shape = jax.ShapeDtypeStruct((1, n, 1, 16), jnp.float32)

        def loss(q, k, v):
            return attention(q, k, v, is_causal=True).sum()

        compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(shape, shape, shape).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(32768) < 3 * temporary(16384)
    assert temporary(32768) < 4 * 32768**2 / 20
