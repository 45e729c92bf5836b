"""Flax: its layers with a policy, and the paper's network, equal to PyTorch's."""

import importlib.util
import pickle
import re
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from safetensors.torch import save_file

import sharpmax
from sharpmax import HELD, PAPER, Fixed, LogLength
from sharpmax.jax import attention
from sharpmax.jax.flax import attention_fn
from sharpmax.tasks.max_retrieval.data import draw
from sharpmax.tasks.max_retrieval.evaluate import scored
from sharpmax.tasks.max_retrieval.networks import answers, initial_weights

X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 9, 16)), jnp.float32)
MASK = nn.make_causal_mask(jnp.ones((3, 2, 9)))


def linen(attention, **settings):
    return nn.MultiHeadDotProductAttention(num_heads=4, attention_fn=attention, **settings)


@pytest.mark.parametrize("mask", [None, MASK, MASK[:1, :1]], ids=["none", "causal", "broadcast"])
def test_linen_with_beta_1_is_its_own(mask):
    weights = linen(nn.dot_product_attention).init(jax.random.key(0), X)
    own = linen(nn.dot_product_attention).apply(weights, X, mask=mask)
    ours = linen(attention_fn(Fixed(1.0))).apply(weights, X, mask=mask)
    np.testing.assert_allclose(ours, own, atol=1e-5)


def test_a_sharpened_layer_is_that_of_the_definition():
    heads = [X.reshape(6, 9, 4, 4)] * 3
    wanted = attention(*heads, is_causal=True, implementation="reference")
    found = attention_fn(PAPER)(*(x.reshape(3, 2, 9, 4, 4) for x in heads), mask=MASK)
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, atol=1e-5)
    unbatched = attention_fn(PAPER)(*(x[0] for x in heads), mask=MASK[0, 0])
    np.testing.assert_allclose(unbatched, wanted[0], atol=1e-5)


@pytest.mark.parametrize("broadcast", [True, False])
def test_linen_drops_what_it_would_drop(broadcast):
    settings = {"dropout_rate": 0.4, "deterministic": False, "broadcast_dropout": broadcast}
    rngs = {"dropout": jax.random.key(1)}
    weights = linen(nn.dot_product_attention).init(jax.random.key(0), X)
    own = linen(nn.dot_product_attention, **settings).apply(weights, X, mask=MASK, rngs=rngs)
    ours = linen(attention_fn(Fixed(1.0)), **settings).apply(weights, X, mask=MASK, rngs=rngs)
    np.testing.assert_allclose(ours, own, atol=1e-5)


def test_linen_sows_sharpened_weights():
    layer = linen(attention_fn(HELD))
    weights = layer.init(jax.random.key(0), X)
    out, sown = layer.apply(weights, X, sow_weights=True, mutable=["intermediates"])
    (kept,) = sown["intermediates"]["attention_weights"]
    assert kept.shape == (3, 2, 4, 9, 9)
    np.testing.assert_allclose(kept.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(out, layer.apply(weights, X), atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"dropout_rate": 0.3, "deterministic": False}])
def test_nnx_with_beta_1_is_its_own(settings):
    def layer(attention):
        return nnx.MultiHeadAttention(
            4, 16, decode=False, attention_fn=attention, rngs=nnx.Rngs(0), **settings
        )

    own, ours = layer(nnx.dot_product_attention), layer(attention_fn(Fixed(1.0)))
    mask = MASK.astype(bool)
    np.testing.assert_allclose(ours(X, mask=mask), own(X, mask=mask), atol=1e-5)


def test_half_precision_and_highest_are_honoured():
    half = linen(attention_fn(PAPER), dtype=jnp.bfloat16, precision="highest")
    weights = half.init(jax.random.key(0), X)
    assert half.apply(weights, X).dtype == jnp.bfloat16
    exact = linen(attention_fn(PAPER)).apply(weights, X)
    np.testing.assert_allclose(half.apply(weights, X).astype(jnp.float32), exact, atol=0.1)


@pytest.mark.parametrize(
    "precision",
    [
        "high",
        ("highest", "highest"),
        jax.lax.Precision.HIGHEST,
        (jax.lax.Precision.HIGH, jax.lax.Precision.HIGH),
        "F32_F32_F32",
        jax.lax.DotAlgorithmPreset.F32_F32_F32,
    ],
    ids=str,
)
def test_precisions_are_what_jax_takes(precision):
    x = X[:, 0].reshape(3, 9, 4, 4)
    calls = [attention_fn(Fixed(1.0)), nn.dot_product_attention]
    traced = [str(jax.make_jaxpr(lambda x, f=f: f(x, x, x, precision=precision))(x)) for f in calls]
    ours, theirs = (set(re.findall("precision=.*", text)) for text in traced)
    assert ours == theirs != set()


def test_one_precision_for_each_operand_is_refused():
    with pytest.raises(NotImplementedError, match="precision must be one for both operands"):
        linen(attention_fn(PAPER), precision=("highest", "default")).init(jax.random.key(0), X)


def test_layers_with_equal_policies_are_equal():
    one, other = (attention_fn(LogLength(4, 0.3)) for _ in range(2))
    assert one == other != attention_fn(PAPER)
    assert one == pickle.loads(pickle.dumps(one))
    assert hash(linen(one)) == hash(linen(other))
    layers = [nnx.MultiHeadAttention(4, 16, attention_fn=f, rngs=nnx.Rngs(0)) for f in (one, other)]
    assert nnx.graphdef(layers[0]) == nnx.graphdef(layers[1])


def test_a_layer_learns_through_its_policy():
    layer = linen(attention_fn(PAPER))
    weights = layer.init(jax.random.key(0), X)
    gradient = jax.grad(lambda w: (layer.apply(w, X, mask=MASK) ** 2).sum())(weights)
    assert all(
        bool(jnp.isfinite(g).all()) and bool((g != 0).any())
        for g in jax.tree.leaves(gradient["params"]["query"]["kernel"])
    )


@pytest.fixture(scope="module")
def example():
    path = Path(__file__).parents[2] / "examples" / "max_retrieval_flax.py"
    spec = importlib.util.spec_from_file_location("max_retrieval_flax", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("policy", [Fixed(1.0), PAPER, HELD], ids=str)
def test_the_papers_network_is_that_of_pytorch(example, tmp_path, policy):
    weights = initial_weights([0, 1])
    for name in weights:
        if name.endswith("bias"):
            weights[name] = 0.1 * torch.randn(weights[name].shape)
    save_file(weights, tmp_path / "weights.safetensors")
    sets = draw((2, 5), 40, torch.Generator().manual_seed(0))
    of_torch = scored(weights, sets)
    attended = of_torch.attended(sharpmax.softmax(of_torch.logits, policy))
    wanted = answers(weights, attended)
    for seed in range(2):
        theirs = example.load_weights(str(tmp_path / "weights.safetensors"), seed)
        items, query = (jnp.asarray(x[seed].numpy()) for x in (sets.items, sets.query))
        found = example.Network(policy).apply(theirs, items, query)
        np.testing.assert_allclose(found, wanted[seed].numpy(), atol=2e-5, rtol=2e-5)


def test_the_example_learns_and_its_weights_come_back(example, tmp_path, monkeypatch):
    monkeypatch.setattr(example, "SIZES", (5,))  # one to compile for
    weights = example.train(steps=100)
    assert example.accuracy(weights, Fixed(1.0), 5) > 0.3
    example.save_weights(weights, str(tmp_path / "weights.safetensors"))
    again = example.load_weights(str(tmp_path / "weights.safetensors"))
    jax.tree.map(np.testing.assert_array_equal, again, weights)
