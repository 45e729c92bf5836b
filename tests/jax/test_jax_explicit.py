"""Arrays that are sharded over a mesh with explicit axes, as `jax.make_mesh` makes them."""

import os
import subprocess
import sys
import textwrap

SCRIPT = """
import flax.linen as nn, jax, jax.numpy as jnp, numpy as np, sharpmax
from jax.sharding import NamedSharding, PartitionSpec as P
from sharpmax import PAPER, EntropyCap, LogLength, PerHead
from sharpmax.jax import attention, chunked
from sharpmax.jax.flax import attention_fn

axes = (jax.sharding.AxisType.Explicit,) * 2
mesh = jax.make_mesh((2, 4), ("data", "heads"), axis_types=axes)
rng = np.random.default_rng(0)

def drawn(*shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)

def sharded(array, *spec):
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))

def same(found, wanted, spec):
    assert jax.typeof(found).sharding.spec == P(*spec), jax.typeof(found)
    np.testing.assert_allclose(jax.device_get(found), wanted, atol=2e-4)

logits = drawn(2, 4, 6, 5)
by_head = PerHead(LogLength(2, 0.0), {"slope": [0.1, 0.2, 0.3, 0.4]})
where = jnp.arange(6)[:, None] != 2

@jax.jit
def of_logits(x):
    rows = sharpmax.RowStatistics.from_logits(x)
    return sharpmax.softmax(x, by_head, where=where), sharpmax.softmax(x, axis=-2), *rows

found = of_logits(sharded(logits, "data", "heads"))
for array, wanted in zip(found, of_logits(logits)):
    same(array, wanted, ("data", "heads", None, None)[:array.ndim])

q, k, v = drawn(2, 6, 8, 4), drawn(2, 7, 4, 4), drawn(2, 7, 4, 3)
mask = jnp.asarray(rng.random((2, 1, 6, 7)) < 0.8)
chunked.CHUNK_ELEMENTS = 2 * 8 * 7 * 4

def loss(q, k, v, mask):
    out = attention(q, k, v, mask=mask, is_causal=True)
    return (out ** 2).sum(), out

def capped(q, k, v, mask):
    return attention(q, k, v, policy=EntropyCap(0.5), implementation="reference"),

for call, spec in (
    (jax.jit(jax.grad(loss, has_aux=True)), ("data", None, "heads", None)),
    (jax.jit(capped), (None, None, "heads", None)),
):
    places = [sharded(x, *spec) for x in (q, k, v)]
    for array, wanted in zip(call(*places, sharded(mask, spec[0])), call(q, k, v, mask)):
        same(array, wanted, spec)

x = drawn(4, 6, 16)
layer = nn.MultiHeadDotProductAttention(num_heads=4, attention_fn=attention_fn(PAPER))
weights = jax.jit(layer.init)(jax.random.key(0), x)
call = jax.jit(layer.apply)
same(call(weights, sharded(x, "data")), call(weights, x), ("data", None, None))
"""


def test_a_sharded_batch_and_sharded_heads_stay_where_they_are():
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # most of the time is compiling
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
