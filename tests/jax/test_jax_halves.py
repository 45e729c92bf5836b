"""Attention in two halves, as on a GPU: the statistics' kernel, the flash identity, its gradients.

Without a GPU the kernel is interpreted, and JAX's own materialised attention stands in for cuDNN's.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharpmax import PAPER, EntropyCap, Fixed, LogLength, PerHead, softmax
from sharpmax.jax import attention, chunked, flash, mosaic, pallas, row_statistics
from sharpmax.jax.row_statistics import implementation_of
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
    "negative scale": {"is_causal": True, "scale": -0.9},
}
ALL_SETTINGS = {
    "scale": None,
    "is_causal": False,
    "query_seq_lengths": None,
    "key_value_seq_lengths": None,
    "local_window_size": None,
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
    monkeypatch.setattr(flash, "refusal_of_device", lambda: None)
    monkeypatch.setattr(flash, "refusal_of_scores", lambda _: None)


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
@pytest.mark.parametrize("check_vma", [False, True])
def test_under_shard_map_of_the_batch(check_vma):
    q, k, v = arrays()
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("batch",))
    batch = jax.sharding.PartitionSpec("batch")
    call = functools.partial(attention, is_causal=True)

    def gradient(call):
        return jax.jit(jax.grad(lambda *x: (call(*x) ** 2).sum(), (0, 1, 2)))

    def sharded(call):
        return jax.shard_map(
            call, mesh=mesh, in_specs=(batch,) * 3, out_specs=batch, check_vma=check_vma
        )

    same(jax.jit(sharded(call))(q, k, v), call(q, k, v))
    close = functools.partial(np.testing.assert_allclose, atol=2e-3, rtol=2e-3)
    jax.tree.map(close, gradient(sharded(call))(q, k, v), gradient(call)(q, k, v))
    if check_vma:
        with pytest.raises(NotImplementedError, match="use check_vma=False"):
            sharded(functools.partial(call, implementation="pallas"))(q, k, v)


@pytest.mark.usefixtures("without_gpu")
def test_the_first_that_can_take_a_call_is_chosen():
    q, k, v = arrays()
    scores = Scores(q, k, 1.0)
    assert implementation_of(None, scores) is pallas
    assert implementation_of(None, scores, v, PAPER) is pallas
    assert implementation_of(None, scores, v, EntropyCap(1.0)) is chunked
    assert implementation_of(None, scores, v[..., :5], PAPER) is chunked


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
        ({"query": jnp.zeros((1, 1, 2, 8), jnp.bfloat16)}, "2 queries and keys or more"),
        ({"query": jnp.zeros((1, 4, 2, 12), jnp.bfloat16)}, "multiples of 8, got 12"),
        ({"window": (2, 1)}, "windows to the left alone unless is_causal"),
        ({"window": (2, 1), "is_causal": True}, None),
    ],
)
def test_what_cudnn_cannot_take(settings, reason):
    query = jnp.zeros((1, 4, 2, 8), jnp.bfloat16)
    scores = Scores(query, query, 1.0)
    found = flash.refusal_of_scores(replace(scores, **settings))
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


@pytest.mark.parametrize("call", CALLS)
def test_the_kernel_can_be_compiled_for_a_gpu_as_far_as_can_be_told_without_one(call):
    q, k, _ = (jax.ShapeDtypeStruct(x.shape, jnp.bfloat16) for x in arrays(width=64))

    def summary(q, k):
        return pallas.summary(Scores.of(q, k, **ALL_SETTINGS | CALLS[call]))

    lowered = jax.jit(summary).trace(q, k).lower(lowering_platforms=("cuda",))
    assert "triton" in lowered.as_text()


@pytest.mark.parametrize("width", mosaic.WIDTHS)
@pytest.mark.parametrize("call", [call for call in CALLS if "window" not in call])
def test_so_can_the_kernel_for_hopper(call, width):
    q, k, _ = (jax.ShapeDtypeStruct(x.shape, jnp.bfloat16) for x in arrays(width=width))

    def summary(q, k):
        scores = Scores.of(q, k, **ALL_SETTINGS | CALLS[call])
        assert mosaic.refusal_of_scores(scores) is None
        return mosaic.summary(scores)

    lowered = jax.jit(summary).trace(q, k).lower(lowering_platforms=("cuda",))
    assert "mosaic_gpu" in lowered.as_text()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"query": jnp.zeros((1, 4, 2, 64), jnp.float32)}, "and float16, got float32"),
        ({"query": jnp.zeros((1, 4, 2, 96), jnp.bfloat16)}, "widths of 64 and 128, got 96"),
        ({"window": (2, 0)}, "no bias, mask or window"),
    ],
)
def test_what_the_kernel_for_hopper_leaves_to_the_other(settings, reason):
    query = jnp.zeros((1, 4, 2, 64), jnp.bfloat16)
    scores = Scores(query, query, 1.0)
    assert mosaic.refusal_of_scores(scores) is None
    assert reason in mosaic.refusal_of_scores(replace(scores, **settings))
    assert "needs a GPU" in mosaic.refusal(scores) or jax.default_backend() == "gpu"


def in_the_same_precision(query, key, value, settings):
    """Attend with every logit at hand, and everything in the dtype of the query."""
    scores = Scores.of(query, key, **ALL_SETTINGS | settings)
    group = query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(x, group, axis=2) for x in (key, value))
    logits = jnp.einsum("btnh,bsnh->bnts", query, key) * scores.scale
    weights = softmax(logits.astype(query.dtype), where=scores.visible())
    return jnp.einsum("bnts,bsnh->btnh", weights, value)


def test_the_kernel_for_hopper_under_vmap_and_checkpoint():
    q, k, _ = (jax.ShapeDtypeStruct(x.shape, jnp.bfloat16) for x in arrays(width=64))

    def alone(q, k):
        return mosaic.summary(Scores(q[None], k[None], 0.1, is_causal=True))

    for call in (jax.vmap(alone), jax.checkpoint(jax.vmap(alone))):
        assert (
            "mosaic_gpu" in jax.jit(call).trace(q, k).lower(lowering_platforms=("cuda",)).as_text()
        )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize(("queries", "keys"), [(T, S), (1000, 1000), (333, 777), (777, 333)])
@pytest.mark.parametrize("call", CALLS)
def test_on_a_gpu_the_kernels_tell_the_statistics(call, queries, keys, width, dtype):
    if "window" in call and queries > keys:
        pytest.skip("cuDNN takes no such window")
    rng = np.random.default_rng(0)
    q, k = (
        jnp.asarray(1.5 * rng.normal(size=shape), dtype)
        for shape in ((B, queries, 4, width), (B, keys, 2, width))
    )
    most = {"query_seq_lengths": queries, "key_value_seq_lengths": keys}
    settings = {
        name: np.minimum(x, most[name]) if name in most else x for name, x in CALLS[call].items()
    }
    found = row_statistics(q, k, **settings, implementation="pallas")
    with jax.default_device(jax.devices("cpu")[0]):
        exact = [np.asarray(x, np.float64) for x in (q, k)]
        wanted = row_statistics(*exact, **settings, implementation="reference")
    for name in ("max", "lse", "entropy", "length"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(wanted, name), rtol=1e-4, atol=1e-4, err_msg=name
        )


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize(("queries", "width"), [(T, 64), (2, 128), (1000, 128), (333, 256)])
@pytest.mark.parametrize("call", [call for call in CALLS if "scale" not in call])
def test_on_a_gpu_they_are_as_good_as_the_materialised_form(
    call, queries, width, dtype, implementation
):
    rng = np.random.default_rng(0)
    shapes = (B, queries, 4, width), *[(B, queries, 2, width)] * 2
    half = [jnp.asarray(1.5 * rng.normal(size=shape), dtype) for shape in shapes]
    exact = [np.asarray(x, np.float64) for x in half]
    grad = rng.normal(size=shapes[0])
    settings = {
        name: np.minimum(x, queries) if isinstance(x, np.ndarray) else x
        for name, x in CALLS[call].items()
    }

    def by(implementation):
        return functools.partial(attention, **settings, implementation=implementation)

    def found(call, arrays):
        def loss(*arrays):
            out = call(*arrays)
            return (out * grad).sum(), out

        return jax.tree.leaves(jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*arrays))

    with jax.default_device(jax.devices("cpu")[0]):
        truth = found(by("reference"), exact)
    ours = found(by(implementation), half)
    theirs = found(functools.partial(in_the_same_precision, settings=settings), half)
    unit = float(jnp.finfo(dtype).eps)
    for x, y, z in zip(ours, theirs, truth, strict=True):
        x, y = (np.asarray(array, np.float64) for array in (x, y))
        allowed = 2 * np.linalg.norm(y - z) + 16 * unit * np.linalg.norm(z) + 1e-4
        assert np.linalg.norm(x - z) <= allowed
