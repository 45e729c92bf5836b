"""The paper's max-retrieval network in Flax, trained on the CPU in a minute.

Items and a query are embedded, one head attends from the query to the items, and the class of the
item of the largest priority is to be named. Trained on sets of 5 to 16 items, asked about more:
plain attention loses the item, and adaptive temperature finds some of it again.

    python examples/max_retrieval_flax.py

The weights are those of `sharpmax reproduce`, by name: `load_weights` reads its safetensors.
"""

import functools
import time
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from rich.console import Console
from rich.table import Table
from safetensors.flax import load_file, save_file

import sharpmax
from sharpmax.jax.flax import attention_fn

CLASSES, WIDTH = 10, 128
SIZES = (5, 8, 12, 16)
STEPS, BATCH, RATE = 3000, 128, 1e-3
ASKED, SETS = (16, 64, 256, 1024, 4096), 256
POLICIES = {"plain": sharpmax.Fixed(1.0), "paper's": sharpmax.PAPER}

Weights = dict[str, Any]


class Network(nn.Module):
    """Names the class of the item of the largest priority.

    Attributes:
        policy: Chooses β.
    """

    policy: sharpmax.Policy = sharpmax.Fixed(1.0)

    @nn.compact
    def __call__(self, items: Array, query: Array) -> Array:
        """Return the logits of the classes, from (batch, size, features) and (batch, 1)."""

        def layers(kind: str, x: Array, width: int = WIDTH, last: Any = nn.gelu) -> Array:
            x = nn.gelu(nn.Dense(WIDTH, name=f"{kind}.1")(x), approximate=False)
            x = nn.Dense(width, name=f"{kind}.2")(x)
            return x if last is None else last(x, approximate=False)

        def projected(name: str, x: Array) -> Array:
            """Return one head's queries, keys or values: (batch, length, 1, width)."""
            return nn.Dense(WIDTH, use_bias=False, name=f"attention.{name}")(x)[:, :, None]

        x, y = layers("item", items), layers("query", query)[:, None]
        attended = attention_fn(self.policy)(
            projected("q", y), projected("k", x), projected("v", x)
        )
        return layers("head", attended[:, 0, 0], CLASSES, last=None)


def draw(key: Array, sets: int, size: int) -> tuple[Array, Array, Array]:
    """Return items, queries and the right classes of random sets."""
    of_priority, of_class, of_query = jax.random.split(key, 3)
    priority = jax.random.uniform(of_priority, (sets, size))
    kind = jax.random.randint(of_class, (sets, size), 0, CLASSES)
    items = jnp.concatenate((priority[..., None], jax.nn.one_hot(kind, CLASSES)), -1)
    target = jnp.take_along_axis(kind, priority.argmax(-1, keepdims=True), -1)[:, 0]
    return items, jax.random.uniform(of_query, (sets, 1)), target


def load_weights(path: str, seed: int = 0) -> Weights:
    """Return Flax's weights of one seed's network from those that `reproduce` has saved."""
    named = {(*name.rpartition(".")[::2],): array[seed] for name, array in load_file(path).items()}
    return {
        "params": unflatten_dict(
            {(layer, _KIND[kind]): array for (layer, kind), array in named.items()}
        )
    }


def save_weights(weights: Weights, path: str) -> None:
    """Write weights as `reproduce` does, with an axis for the one seed in front."""
    kinds = {flax: torch for torch, flax in _KIND.items()}
    save_file(
        {
            f"{layer}.{kinds[kind]}": array[None]
            for (layer, kind), array in flatten_dict(weights["params"]).items()
        },
        path,
    )


_KIND = {"weight": "kernel", "bias": "bias"}


def train(steps: int = STEPS, seed: int = 0) -> Weights:
    """Return weights that name the class in sets of up to 16 items."""
    network = Network()
    begin, key = jax.random.split(jax.random.key(seed))
    items, query, _ = draw(begin, BATCH, SIZES[0])
    weights: Weights = network.init(begin, items, query)
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, steps))

    @functools.partial(jax.jit, static_argnums=3)
    def step(weights: Weights, state: Any, key: Array, size: int) -> Any:
        items, query, target = draw(key, BATCH, size)

        def loss(weights: Weights) -> Array:
            logits = network.apply(weights, items, query)
            return optax.softmax_cross_entropy_with_integer_labels(logits, target).mean()

        updates, state = optimizer.update(jax.grad(loss)(weights), state)
        return optax.apply_updates(weights, updates), state

    state = optimizer.init(weights)
    for number in range(steps):
        of_step = jax.random.fold_in(key, number)
        weights, state = step(weights, state, of_step, SIZES[number % len(SIZES)])
    return weights


def accuracy(weights: Weights, policy: sharpmax.Policy, size: int) -> float:
    """Return the share of sets of a size that are named right."""

    @jax.jit
    def share(weights: Weights) -> Array:
        items, query, target = draw(jax.random.key(size), SETS, size)
        return (Network(policy).apply(weights, items, query).argmax(-1) == target).mean()

    return float(share(weights))


def main() -> None:
    begun = time.perf_counter()
    weights = train()
    print(f"{STEPS:,} steps in {time.perf_counter() - begun:.0f} s")
    table = Table(title="Sets named right")
    table.add_column("items", justify="right")
    for name in POLICIES:
        table.add_column(name, justify="right")
    for size in ASKED:
        shares = [f"{accuracy(weights, policy, size):.1%}" for policy in POLICIES.values()]
        table.add_row(str(size), *shares)
    Console().print(table)


if __name__ == "__main__":
    main()
