"""The training of max-retrieval networks beside the same training written plainly in JAX.

`Training` against one jitted step of JAX, one network after another, and against that step
vmapped over all seeds. All draw their sets on the device within the step, in float32, and take
the same sizes in the same order; JAX compiles a program a size, and sharpmax captures a graph a
size on a GPU, before the clock starts. They take turns in blocks of steps; a time is that of a
seed and step, and a ratio is a median of the ratios of a round. First of all, both must give the
same loss and gradients for the same weights and sets; their mean losses stand beside the times.

    python benchmarks/max_retrieval.py    writes benchmarks/results/<device>/max_retrieval.csv
"""

import functools
import math
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from measure import CUDA, PLACE, WARM_UP, keep, summary
from torch.nn.functional import cross_entropy as torch_cross_entropy

from sharpmax import Fixed
from sharpmax.tasks.max_retrieval.data import CLASSES, draw
from sharpmax.tasks.max_retrieval.evaluate import scored
from sharpmax.tasks.max_retrieval.networks import WIDTH, answers
from sharpmax.tasks.max_retrieval.settings import Settings
from sharpmax.tasks.max_retrieval.train import Training

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # PyTorch needs memory beside it
import jax
import jax.numpy as jnp
from jax import Array

BLOCKS, STEPS = (12, 60) if CUDA else (8, 30)
SETTINGS = Settings(
    seeds=10 if CUDA else 3,
    least_items=13 if CUDA else 5,  # JAX compiles long for a GPU, and twice a size
    steps=(WARM_UP + BLOCKS) * STEPS,
)
DECAYS, EPSILON = (0.9, 0.999), 1e-8
TOLERANCE = 1e-4

Weights = dict[str, Array]


class State(NamedTuple):
    """One network's training, or with a leading axis that of all."""

    weights: Weights
    mean: Weights
    square: Weights
    step: Array
    key: Array
    loss: Array


def layer(weights: Weights, name: str, x: Array) -> Array:
    return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]


def gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=False)  # as PyTorch's


def network(weights: Weights, items: Array, query: Array) -> Array:
    """Return the logits of the classes, with the queries, keys and values of the paper."""
    x = gelu(layer(weights, "item.2", gelu(layer(weights, "item.1", items))))
    y = gelu(layer(weights, "query.2", gelu(layer(weights, "query.1", query))))
    q = y @ weights["attention.q.weight"]
    k = x @ weights["attention.k.weight"]
    v = x @ weights["attention.v.weight"]
    attention = jax.nn.softmax(jnp.einsum("bd,bnd->bn", q, k) / math.sqrt(WIDTH))
    attended = jnp.einsum("bn,bnd->bd", attention, v)
    return layer(weights, "head.2", gelu(layer(weights, "head.1", attended)))


def cross_entropy(weights: Weights, items: Array, query: Array, target: Array) -> Array:
    log_p = jax.nn.log_softmax(network(weights, items, query))
    return -jnp.take_along_axis(log_p, target[:, None], axis=-1).mean()


def penalised(weights: Weights, *sets: Array) -> tuple[Array, Array]:
    """Return the loss with L2, and the cross-entropy in it."""
    loss = cross_entropy(weights, *sets)
    squares = sum((w**2).sum() for w in weights.values())
    return loss + SETTINGS.l2 / 2 * squares, loss


def random_sets(key: Array, size: int) -> tuple[Array, Array, Array]:
    """Return items, queries and targets."""
    of_priority, of_class, of_query = jax.random.split(key, 3)
    priority = jax.random.uniform(of_priority, (SETTINGS.batch, size))
    kind = jax.random.randint(of_class, (SETTINGS.batch, size), 0, CLASSES)
    query = jax.random.uniform(of_query, (SETTINGS.batch, 1))
    target = jnp.take_along_axis(kind, priority.argmax(-1, keepdims=True), axis=-1)[:, 0]
    items = jnp.concatenate((priority[..., None], jax.nn.one_hot(kind, CLASSES)), axis=-1)
    return items, query, target


def update(state: State, size: int) -> State:
    """Draw a batch and take one step of Adam."""
    key, of_sets = jax.random.split(state.key)
    sets = random_sets(of_sets, size)
    gradient, loss = jax.grad(penalised, has_aux=True)(state.weights, *sets)
    (a, b), step = DECAYS, state.step + 1
    mean = jax.tree.map(lambda m, g: a * m + (1 - a) * g, state.mean, gradient)
    square = jax.tree.map(lambda s, g: b * s + (1 - b) * g**2, state.square, gradient)

    def moved(w: Array, m: Array, s: Array) -> Array:
        m, s = m / (1 - a**step), s / (1 - b**step)
        return w - SETTINGS.learning_rate * m / (jnp.sqrt(s) + EPSILON)

    weights = jax.tree.map(moved, state.weights, mean, square)
    return State(weights, mean, square, step, key, state.loss + loss)


@functools.partial(jax.jit, static_argnums=1, donate_argnums=0)
def step_of_one(state: State, size: int) -> State:
    return update(state, size)


@functools.partial(jax.jit, static_argnums=1, donate_argnums=0)
def step_of_all(state: State, size: int) -> State:
    return jax.vmap(lambda one: update(one, size))(state)


def initial(weights: Weights, key: Array, shape: tuple[int, ...]) -> State:
    """Return a training's beginning; `shape` is (), or (seeds,)."""
    mean, square = (jax.tree.map(jnp.zeros_like, weights) for _ in range(2))
    return State(weights, mean, square, jnp.zeros(shape), key, jnp.zeros(shape))


def in_jax(training: Training, seed: int | slice) -> Weights:
    """Return PyTorch's weights of a seed, or of some."""
    return {name: jnp.array(w.detach()[seed].cpu().numpy()) for name, w in training.weights.items()}


def agree(training: Training) -> None:
    """Assert that the first seed's loss, and its gradients, are the same on both sides."""
    generator = torch.Generator(PLACE).manual_seed(0)
    loss_and_gradients = jax.jit(jax.value_and_grad(cross_entropy))
    for size in (SETTINGS.least_items, SETTINGS.most_items):
        sets = draw((1, SETTINGS.batch), size, generator)
        weights = {n: w.detach()[:1].clone().requires_grad_() for n, w in training.weights.items()}
        rows = scored(weights, sets)
        classes = answers(weights, rows.attended(torch.softmax(rows.logits, -1)))[0]
        loss = torch_cross_entropy(classes, sets.target[0])
        loss.backward()
        given = [jnp.array(x[0].cpu().numpy()) for x in (sets.items, sets.query, sets.target)]
        ours, gradients = loss_and_gradients(in_jax(training, 0), *given)
        assert abs(loss.item() - float(ours)) < TOLERANCE, (size, loss.item(), float(ours))
        for name, w in weights.items():
            assert w.grad is not None
            error = np.abs(w.grad[0].cpu().numpy() - np.asarray(gradients[name])).max()
            assert error < TOLERANCE, (size, name, error)


def candidates(training: Training) -> dict[str, tuple[Callable[[int, int], None], Any]]:
    """Return, by name, what trains from a step to another, and what tells the mean loss."""
    seeds = SETTINGS.seeds
    keys = jax.random.split(jax.random.key(0), seeds)
    sizes = training.sizes.tolist()
    ones = [initial(in_jax(training, seed), keys[seed], ()) for seed in range(seeds)]
    every = initial(in_jax(training, slice(None)), keys, (seeds,))

    def sharpmax_run(_: int, until: int) -> None:
        training.run(until)
        if CUDA:
            torch.cuda.synchronize()

    def one_by_one(start: int, until: int) -> None:
        for seed in range(seeds):
            for size in sizes[start:until]:
                ones[seed] = step_of_one(ones[seed], size)
        jax.block_until_ready(ones)

    def vmapped(start: int, until: int) -> None:
        nonlocal every
        for size in sizes[start:until]:
            every = step_of_all(every, size)
        jax.block_until_ready(every)

    return {
        "sharpmax": (sharpmax_run, lambda: np.mean([loss for _, _, loss, _ in training.record])),
        "jax": (one_by_one, lambda: np.mean([one.loss / one.step for one in ones])),
        "jax, vmapped": (vmapped, lambda: np.mean(every.loss / every.step)),
    }


def measure(training: Training) -> list[dict[str, Any]]:
    calls = candidates(training)
    warm, every = set(training.sizes[: WARM_UP * STEPS]), set(training.sizes)
    assert warm == every, f"the warm-up leaves out the sizes {every - warm}"
    times: dict[str, list[float]] = {name: [] for name in calls}
    for block in range(WARM_UP + BLOCKS):
        for name, (run, _) in calls.items():
            start = time.perf_counter()
            run(block * STEPS, (block + 1) * STEPS)
            elapsed = 1e3 * (time.perf_counter() - start) / (STEPS * SETTINGS.seeds)
            if block >= WARM_UP:
                times[name].append(elapsed)
    rows = []
    for name, (_, loss) in calls.items():
        numbers = summary(times[name], times["jax"])
        numbers["ratio_to_vmapped"] = summary(times[name], times["jax, vmapped"])["ratio"]
        rows.append(
            {
                "candidate": name,
                "seeds": SETTINGS.seeds,
                "batch": SETTINGS.batch,
                "sizes": f"{SETTINGS.least_items} to {SETTINGS.most_items}",
                "dtype": "float32",
                "yardstick": "jax",
                **numbers,
                "mean_loss": round(float(loss()), 3),
                "jax": jax.__version__,
            }
        )
        print(
            f"{name}: {numbers['p50_ms']} ms a seed and step, {numbers['ratio']} of jax, "
            f"{numbers['ratio_to_vmapped']} of jax, vmapped; mean loss {rows[-1]['mean_loss']}"
        )
    return rows


if __name__ == "__main__":
    if not CUDA:
        jax.config.update("jax_platforms", "cpu")
    elif jax.default_backend() != "gpu":
        raise SystemExit("PyTorch has a GPU here and JAX has none: there is nothing to compare.")
    jax.config.update("jax_default_matmul_precision", "float32")  # PyTorch's own default
    training = Training(SETTINGS, Fixed(1.0), torch.device(PLACE))
    agree(training)
    keep("max_retrieval", measure(training))
