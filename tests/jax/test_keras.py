"""Keras: its layer with a policy, on both backends that sharpmax has."""

import os
import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
import keras, numpy as np, sharpmax
from sharpmax.keras import MultiHeadAttention

x = np.random.default_rng(0).normal(size=(2, 9, 16)).astype("float32")
mask = np.random.default_rng(1).random((2, 9, 9)) < 0.7
mask[:, :, 0] = True
calls = [{}, {"use_causal_mask": True}, {"attention_mask": mask},
         {"attention_mask": mask, "use_causal_mask": True}]

own = keras.layers.MultiHeadAttention(4, 8)
own(x, x)

def ours(policy, **settings):
    layer = MultiHeadAttention(4, 8, policy=policy, **settings)
    layer(x, x)
    layer.set_weights(own.get_weights())
    return layer

plain, sharp = ours(sharpmax.Fixed(1.0)), ours(sharpmax.PAPER)
array = keras.ops.convert_to_numpy
for call in calls:
    np.testing.assert_allclose(array(plain(x, x, **call)), array(own(x, x, **call)), atol=1e-5)
    out, weights = sharp(x, x, return_attention_scores=True, **call)
    np.testing.assert_allclose(array(sharp(x, x, **call)), array(out), atol=1e-5)
    np.testing.assert_allclose(array(weights).sum(-1), 1, atol=1e-5)
assert np.abs(array(out) - array(own(x, x, **call))).max() > 1e-3

dropping = ours(sharpmax.PAPER, dropout=0.5)
dropped, kept = (array(dropping(x, x, training=t)) for t in (True, False))
assert np.abs(dropped - kept).max() > 1e-3
np.testing.assert_allclose(kept, array(sharp(x, x)), atol=1e-5)

inputs = keras.Input((9, 16))
model = keras.Model(inputs, keras.layers.Flatten()(MultiHeadAttention(2, 4)(inputs, inputs)))
model.compile("adam", "mse")
before = array(model.layers[1].get_weights()[0]).copy()
model.fit(x, np.zeros((2, 144), "float32"), verbose=0)
assert (array(model.layers[1].get_weights()[0]) != before).any()

copy = MultiHeadAttention.from_config(sharp.get_config())
assert copy.policy == sharpmax.PAPER
try:
    MultiHeadAttention(4, 8, policy="paper")
except TypeError as error:
    print(error)
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_keras(backend):
    environment = os.environ | {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(SCRIPT)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "policy must be a sharpmax.Policy" in done.stdout
