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
assert MultiHeadAttention.from_config(own.get_config()).policy == sharpmax.PAPER

# q·k is 64·40·40, which float16 does not hold, and q·k/8 is what it does.
large = 40 * np.random.default_rng(2).choice([-1.0, 1.0], size=(1, 4, 64)).astype("float32")
one = np.eye(64, dtype="float32")
half = MultiHeadAttention(1, 64, dtype="mixed_float16", use_bias=False, dropout=0.1)
half(large, large)
half.set_weights([one.reshape(64, 1, 64)] * 3 + [one.reshape(1, 64, 64)])
assert np.isfinite(array(half(large, large, return_attention_scores=True)[0])).all()
assert np.isfinite(array(half(large, large, training=True))).all()

def refused(call):
    try:
        call()
    except (TypeError, ValueError) as error:
        print(error)

refused(lambda: MultiHeadAttention(4, 8, policy="paper"))
refused(lambda: MultiHeadAttention(4, 8, flash_attention=True))
deep = x.reshape(2, 3, 3, 16)
refused(lambda: MultiHeadAttention(4, 8, attention_axes=(2,))(deep, deep))
"""


JAX = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
"""Most of the time is compiling."""


def run(script, **environment):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        env=os.environ | JAX | environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_keras(backend):
    done = run(SCRIPT, KERAS_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    assert "policy must be a sharpmax.Policy" in done.stdout
    assert "flash_attention must be None or False, got True" in done.stdout
    assert "inputs must have three axes, (batch, length, width)" in done.stdout


@pytest.mark.parametrize("missing", ["keras", "tensorflow"])
def test_what_must_be_installed_or_set_is_told(missing, tmp_path):
    script = f"import sys; sys.modules[{missing!r}] = None; import sharpmax.keras"
    done = run(script, KERAS_BACKEND="tensorflow", KERAS_HOME=str(tmp_path))
    advice = {"keras": "pip install 'sharpmax[keras]'", "tensorflow": "set KERAS_BACKEND to jax or"}
    assert advice[missing] in done.stderr.splitlines()[-1]
