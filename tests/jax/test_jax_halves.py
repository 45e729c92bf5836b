"""Attention in two halves, as on a GPU: the statistics' kernel, the flash identity, its gradients.

Without a GPU the kernel is interpreted, and JAX's own materialised attention stands in for cuDNN's.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharpmax import PAPER, EntropyCap, Fixed, LogLength, PerHead
from sharpmax.jax import attention, cudnn, flash, pallas, row_statistics
from sharpmax.jax.scores import Scores

B, T, S, N, K, H = 2, 150, 150, 4, 2, 16
CALLS = {
    "plain": {},
    "causal": {"is_causal": True},
    "left window": {"local_window_size": (30, 0)},
    "causal window": {"is_causal": True, "local_window_size": 70},
    "lengths": {"key_value_seq_lengths": np.array([5, 150], np.int32)},
    "both lengths": {
        "is_causal": True,
        "query_seq_lengths": np.array([150, 70], np.int32),
        "key_value_seq_lengths": np.array([50, 150], np.int32),
    },
    "scale": {"scale": 0.9},
}
IMPLEMENTATIONS = ["cudnn", "pallas"]


def stand_in(scores, value):
    """What cuDNN would give."""
    out, lse = jax.nn.dot_product_attention(
        scores.query,
        scores.key,
        value,
        is_causal=scores.is_causal,
        local_window_size=scores.window,
        query_seq_lengths=scores.query_lengths,
        key_value_seq_lengths=scores.key_lengths,
        scale=scores.scale,
        return_residual=True,
    )
    return out, jnp.moveaxis(lse, 1, 2)


@pytest.fixture
def without_gpu(monkeypatch):
    monkeypatch.setattr(flash, "flash", stand_in)
    monkeypatch.setattr(pallas, "INTERPRETED", True)
    for implementation in (cudnn, pallas):
        monkeypatch.setattr(implementation, "refusal", lambda _: None)


def arrays(dtype=jnp.float32, queries=T, width=H, scale=2.0):
    rng = np.random.default_rng(0)
    shapes = (B, queries, N, width), (B, S, K, width), (B, S, K, width)
    return [jnp.asarray(scale * rng.normal(size=shape), dtype) for shape in shapes]


same = functools.partial(np.testing.assert_allclose, atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("call", CALLS)
def test_statistics_are_those_of_the_definition(call, implementation):
    q, k, _ = arrays()
    found, wanted = (
        row_statistics(q, k, **CALLS[call], implementation=i) for i in (implementation, "reference")
    )
    for name in ("lse", "entropy", "length"):
        same(getattr(found, name), getattr(wanted, name), err_msg=name)
    if implementation == "pallas":
        same(found.max, wanted.max)


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize("queries", [1, 5, 200])
@pytest.mark.parametrize("width", [8, 24, 64])
def test_shapes_that_fill_no_tile(queries, width):
    q, k, _ = arrays(queries=queries, width=width)
    for settings in ({}, {"is_causal": True}):
        found, wanted = (
            row_statistics(q, k, **settings, implementation=i) for i in ("pallas", "reference")
        )
        jax.tree.map(same, found, wanted)


@pytest.mark.usefixtures("without_gpu")
def test_sharp_rows_keep_the_digits_of_their_entropy():
    q, k, _ = arrays(scale=6.0)
    found, wanted = (row_statistics(q, k, implementation=i) for i in ("pallas", "reference"))
    assert float(wanted.entropy.min()) < 1e-3
    np.testing.assert_allclose(found.entropy, wanted.entropy, rtol=1e-3, atol=1e-6)


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("call", CALLS)
def test_both_halves_and_their_gradients_are_those_of_the_definition(call, implementation):
    q, k, v = arrays()
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(3, B, N, T)), jnp.float32)

    def loss(q, k, v, implementation):
        out, rows = attention(
            q, k, v, **CALLS[call], implementation=implementation, return_statistics=True
        )
        seen = rows.length > 0
        of_rows = weights[0] * jnp.where(seen, rows.lse, 0.0) + weights[1] * rows.entropy
        return (out**2).sum() + of_rows.sum(), out

    results = [
        jax.jit(jax.grad(functools.partial(loss, implementation=i), (0, 1, 2), has_aux=True))(
            q, k, v
        )
        for i in (implementation, "reference")
    ]
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-3, rtol=2e-3), *results)


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize(
    "policy",
    [Fixed(1.7), LogLength(8, 0.3), PerHead(LogLength(4, 0.0), {"slope": [0.0, 0.1, 0.2, 0.3]})],
    ids=str,
)
def test_policies(policy):
    q, k, v = arrays()
    found, wanted = (
        attention(q, k, v, is_causal=True, policy=policy, implementation=i)
        for i in ("pallas", "reference")
    )
    same(found, wanted)


@pytest.mark.usefixtures("without_gpu")
def test_under_vmap_and_checkpoint():
    q, k, v = arrays()
    call = functools.partial(attention, is_causal=True, implementation="pallas")
    wanted = call(q, k, v)
    same(jax.checkpoint(call)(q, k, v), wanted)
    same(jax.vmap(lambda *x: call(*(y[None] for y in x))[0])(q, k, v), wanted)

    def gradient(call):
        return jax.jit(jax.grad(lambda *x: (call(*x) ** 2).sum(), (0, 1, 2)))

    close = functools.partial(np.testing.assert_allclose, atol=2e-3, rtol=2e-3)
    whole = gradient(call)(q, k, v)
    alone = jax.vmap(gradient(lambda *x: call(*(y[None] for y in x))))(q, k, v)
    jax.tree.map(close, alone, whole)
    jax.tree.map(close, gradient(jax.checkpoint(call))(q, k, v), whole)


@pytest.mark.usefixtures("without_gpu")
def test_whole_rows_and_other_widths_are_left_to_the_chunks():
    q, k, v = arrays()
    narrow = v[..., :5]
    for implementation in IMPLEMENTATIONS:
        with pytest.raises(NotImplementedError, match="reads rows whole"):
            attention(q, k, v, policy=EntropyCap(1.0), implementation=implementation)
        with pytest.raises(NotImplementedError, match="values as wide as keys, 16, got 5"):
            attention(q, k, narrow, implementation=implementation)
    assert attention(q, k, v, policy=EntropyCap(1.0)).shape == q.shape
    assert attention(q, k, narrow).shape == (*q.shape[:3], 5)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, None),
        (
            {"query": jnp.zeros((1, 4, 2, 8), jnp.float32)},
            "and float16, got float32",
        ),
        ({"bias": jnp.zeros((1, 1, 4, 4))}, "cannot scale a bias by β"),
        ({"mask": jnp.ones((1, 1, 4, 4), bool)}, "but no mask"),
        ({"query": jnp.zeros((1, 4, 2, 12), jnp.bfloat16)}, "multiples of 8, got 12"),
        ({"window": (2, 1)}, "windows to the left alone unless is_causal"),
        ({"window": (2, 1), "is_causal": True}, None),
    ],
)
def test_what_cudnn_cannot_take(settings, reason):
    query = jnp.zeros((1, 4, 2, 8), jnp.bfloat16)
    scores = Scores(query, query, 1.0)
    found = flash.refusal_of_call(replace(scores, **settings))
    assert (found is None) if reason is None else (reason in found)


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="refused only where there is no GPU")
def test_without_a_gpu_they_are_refused_by_name():
    q, k, v = arrays()
    for implementation in IMPLEMENTATIONS:
        with pytest.raises(
            NotImplementedError, match=f"'{implementation}' needs a GPU, and JAX runs on cpu"
        ):
            attention(q, k, v, implementation=implementation)
    same(attention(q, k, v, policy=PAPER), attention(q, k, v, implementation="chunked"))


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize(("queries", "width"), [(T, 64), (2, 128), (1000, 128), (333, 256)])
@pytest.mark.parametrize("call", [call for call in CALLS if call != "scale"])
def test_on_a_gpu_they_are_as_good_as_the_materialised_form(
    call, queries, width, dtype, implementation
):
    rng = np.random.default_rng(0)
    exact = [
        np.asarray(jnp.asarray(1.5 * rng.normal(size=shape), dtype), np.float64)
        for shape in ((B, queries, 4, width), (B, queries, 2, width), (B, queries, 2, width))
    ]
    settings = {
        name: np.minimum(x, queries) if isinstance(x, np.ndarray) else x
        for name, x in CALLS[call].items()
    }

    def found(arrays, implementation):
        def loss(q, k, v):
            out = attention(q, k, v, **settings, implementation=implementation)
            return (out.astype(jnp.float32) ** 2).sum(), out

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*arrays)

    wanted = found(exact, "reference")
    half = [jnp.asarray(x, dtype) for x in exact]

    def errors(implementation):
        return [
            float(np.abs(np.asarray(a, np.float64) - np.asarray(b)).max())
            for a, b in zip(
                jax.tree.leaves(found(half, implementation)), jax.tree.leaves(wanted), strict=True
            )
        ]

    for ours, materialised in zip(errors(implementation), errors("reference"), strict=True):
        assert ours <= 2 * materialised + 0.02
