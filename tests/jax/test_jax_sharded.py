"""Keys that are sharded over devices: results, statistics and gradients are those of one device."""

import os
import subprocess
import sys
import textwrap

SHARDED = """
import functools, jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P
from sharpmax import PAPER, EntropyCap, LogLength
from sharpmax.jax import attention, row_statistics

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("keys",))
rng = np.random.default_rng(0)
arrays = [jnp.asarray(rng.normal(size=(2, 48, n, 8)), jnp.float32) for n in (4, 2, 2)]
lengths = jnp.array([48, 0])
weights = jnp.asarray(rng.normal(size=(3, 2, 4, 48)), jnp.float32)

def both(checked, **settings):
    settings |= {"key_value_seq_lengths": lengths, "return_statistics": True}
    one = functools.partial(attention, **settings)
    many = jax.shard_map(
        functools.partial(one, axis_name="keys"), mesh=mesh,
        in_specs=(P(), P(None, "keys"), P(None, "keys")), out_specs=P(), check_vma=checked,
    )
    return one, many

def found(call):
    def loss(*arrays):
        out, rows = call(*arrays)
        known = zip(weights, (rows.max, rows.lse, rows.entropy))
        told = sum((w * jnp.where(rows.length > 0, x, 0.0)).sum() for w, x in known)
        return (out ** 2).sum() + told, (out, rows)
    return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*arrays)

same = functools.partial(np.testing.assert_allclose, atol=2e-4, rtol=2e-4)
for checked, settings in (
    (True, {"policy": PAPER, "is_causal": True}),
    (False, {"policy": LogLength(8, 0.3), "local_window_size": (7, 3)}),
):
    jax.tree.map(same, *map(found, both(checked, **settings)))

bias = jnp.asarray(rng.normal(size=(1, 4, 48, 48)), jnp.float32)
mask = jnp.asarray(rng.random((2, 1, 1, 48)) < 0.8)
by_key = P(None, None, None, "keys")
many = jax.shard_map(
    functools.partial(attention, axis_name="keys"), mesh=mesh,
    in_specs=(P(), P(None, "keys"), P(None, "keys"), by_key, by_key), out_specs=P(),
    check_vma=False,
)

def of_query(call, bias):
    return jax.jit(jax.value_and_grad(lambda q: (call(q, *arrays[1:], bias, mask) ** 2).sum()))

rows = jax.shard_map(
    functools.partial(row_statistics, axis_name="keys"), mesh=mesh,
    in_specs=(P(), P(None, "keys"), by_key, by_key), out_specs=P(),
)
settings = (*arrays[:2], bias, mask)
jax.tree.map(same, jax.jit(rows)(*settings), jax.jit(row_statistics)(*settings))

hidden = jnp.where(mask, bias, -jnp.inf)
jax.tree.map(same, of_query(many, hidden)(arrays[0]), of_query(attention, bias)(arrays[0]))
try:
    both(True, policy=EntropyCap(1.0))[1](*arrays)
except NotImplementedError as error:
    print(error)
"""


def test_sharded_keys_are_those_of_one_device():
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # most of the time is compiling
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SHARDED)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "leave no row whole, from which EntropyCap chooses" in done.stdout
