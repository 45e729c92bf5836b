"""Training of all seeds' networks at once; on a GPU each step is one captured graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sharpmax.policies import Fixed
from sharpmax.softmax import softmax
from sharpmax.tasks.max_retrieval.data import draw
from sharpmax.tasks.max_retrieval.networks import answers, directions, embed, initial_weights

if TYPE_CHECKING:
    from sharpmax.policy import Policy
    from sharpmax.tasks.max_retrieval.networks import Weights
    from sharpmax.tasks.max_retrieval.settings import Settings

LOG_EVERY = 100
"""Steps that one entry of the training's record averages over."""
ITEMS_A_THREAD = 2**14
"""Items in a step on the CPU for each thread. Two threads would take a paper's batch a quarter
faster on a quiet machine, and twenty times slower beside another program, which they wait for at
every operation."""
PLAIN = Fixed(1.0)


class Training:
    """A training under way: weights, optimizer and random numbers, all of which can be saved.

    Attributes:
        step: How many steps are done.
        record: For every `LOG_EVERY` steps, the loss and the accuracy of each seed.
    """

    def __init__(self, settings: Settings, policy: Policy, device: torch.device) -> None:
        seeds = range(settings.first_seed, settings.first_seed + settings.seeds)
        initial = initial_weights(seeds, ssmax=settings.ssmax)
        self.settings, self.policy, self.device = settings, policy, device
        self.weights = {name: w.to(device).requires_grad_() for name, w in initial.items()}
        self.averaged = {name: w.detach().clone() for name, w in self.weights.items()}
        self.rate = torch.tensor(settings.learning_rate, device=device)
        self.optimizer = torch.optim.Adam(
            self.weights.values(),
            lr=self.rate,
            weight_decay=settings.l2,  # added to the gradient: that of l2·‖w‖²/2 in the loss
            fused=True,
            capturable=device.type == "cuda",
        )
        self.generator = torch.Generator(device).manual_seed(settings.first_seed)
        rng = np.random.default_rng(settings.first_seed)
        self.sizes = rng.integers(settings.least_items, settings.most_items + 1, settings.steps)
        self.step = 0
        self.record: list[tuple[int, int, float, float]] = []
        self._sums = torch.zeros(2, settings.seeds, device=device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None

    def run(self, until: int) -> None:
        """Go on up to a step, or to the last."""
        with self._threads():
            self._run(until)

    def _run(self, until: int) -> None:
        while self.step < min(until, self.settings.steps):
            size = int(self.sizes[self.step])
            if self.settings.schedule == "cosine":
                done = self.step / self.settings.steps
                self.rate.fill_(self.settings.learning_rate * (1 + math.cos(math.pi * done)) / 2)
            self._take_step(size)
            self.step += 1
            if self.step % LOG_EVERY == 0:
                self._log()

    def result(self) -> Weights:
        """Return the weights to test: the last, or their running mean."""
        weights = self.averaged if self.settings.average else self.weights
        return {name: w.detach() for name, w in weights.items()}

    def state(self) -> dict[str, Tensor]:
        """Return everything that the training goes on from, as tensors by name."""
        tensors = {f"weights/{name}": w.detach() for name, w in self.weights.items()}
        tensors |= {f"averaged/{name}": w for name, w in self.averaged.items()}
        for name, weight in self.weights.items():
            for kind, value in self.optimizer.state.get(weight, {}).items():
                tensors[f"adam/{kind}/{name}"] = value
        record = torch.tensor(self.record, dtype=torch.float64).reshape(-1, 4)
        return tensors | {
            "random": self.generator.get_state(),
            "record": record,
            "sums": self._sums,
            "step": torch.tensor(self.step),
        }

    def resume(self, tensors: dict[str, Tensor]) -> None:
        """Go on from a saved state."""
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(tensors[f"weights/{name}"])
                self.averaged[name].copy_(tensors[f"averaged/{name}"])
                self.optimizer.state[weight] = {
                    kind: tensors[f"adam/{kind}/{name}"].to(self.device)
                    for kind in ("step", "exp_avg", "exp_avg_sq")
                }
        self.generator.set_state(tensors["random"])
        self._sums.copy_(tensors["sums"])
        self.record = [
            (int(step), int(seed), loss, accuracy)
            for step, seed, loss, accuracy in tensors["record"].tolist()
        ]
        self.step = int(tensors["step"])

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """Let PyTorch use as many threads as a step has work for."""
        items = self.settings.seeds * self.settings.batch * self.settings.most_items
        before = torch.get_num_threads()
        torch.set_num_threads(max(1, min(before, items // ITEMS_A_THREAD)))
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _take_step(self, size: int) -> None:
        if self.device.type != "cuda":
            self._update(size)
            return
        if size not in self._graphs:
            self._capture(size)
        self._graphs[size].replay()

    def _update(self, size: int) -> None:
        """Draw a batch and take one step of Adam."""
        settings = self.settings
        sets = draw((settings.seeds, settings.batch), size, self.generator)
        weights = self.weights
        x = embed(weights, "item", sets.items.flatten(1, 2))
        direction = directions(weights, sets.query, size)
        x = x.view(settings.seeds, settings.batch, size, -1)
        logits = (x @ direction[..., None])[..., 0]
        if settings.gumbel:
            uniform = torch.rand(logits.shape, generator=self.generator, device=self.device)
            noise = -torch.log(-torch.log(uniform.clamp(1e-20, 1 - 2**-24)))
            logits = logits + settings.gumbel * noise
        plain = self.policy == PLAIN
        attention = torch.softmax(logits, -1) if plain else softmax(logits, self.policy)
        classes = answers(weights, (attention[..., None, :] @ x)[..., 0, :])
        losses = cross_entropy(classes.flatten(0, 1), sets.target.flatten(), reduction="none")
        losses = losses.view(sets.target.shape).mean(1)
        gradients = torch.autograd.grad(losses.sum(), list(weights.values()))
        if settings.clip:
            gradients = clipped(gradients, settings.clip)
        for weight, gradient in zip(weights.values(), gradients, strict=True):
            weight.grad = gradient.contiguous()
        self.optimizer.step()
        with torch.no_grad():
            right = (classes.argmax(-1) == sets.target).float().mean(1)
            self._sums += torch.stack((losses, right))
            if settings.average:
                torch._foreach_lerp_(
                    list(self.averaged.values()), list(weights.values()), 1 - settings.average
                )

    def _capture(self, size: int) -> None:
        """Capture the step for a size as a graph, leaving everything as it was."""
        before = {name: tensor.clone() for name, tensor in self.state().items()}
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._update(size)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        # The sizes' graphs never run side by side, and nothing of a step but the state lives on.
        with torch.cuda.graph(graph, pool=self._pool):
            self._update(size)
        self._pool = graph.pool()
        self._graphs[size] = graph
        with torch.no_grad():
            for name, tensor in self.state().items():
                if name.startswith(("weights/", "averaged/", "adam/", "sums")):
                    # Before its first step, Adam has no state; zeros are the same.
                    tensor.copy_(before.get(name, torch.zeros_like(tensor)))
        self.generator.set_state(before["random"])

    def _log(self) -> None:
        losses, accuracies = (self._sums / LOG_EVERY).tolist()
        self._sums.zero_()
        for seed, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True)):
            self.record.append((self.step, self.settings.first_seed + seed, loss, accuracy))


def clipped(gradients: Sequence[Tensor], most: float) -> tuple[Tensor, ...]:
    """Return the gradients of all networks, each network's scaled down to a norm of at most `most`.

    The first axis is that of the networks.
    """
    squares = [gradient.square().flatten(1).sum(1) for gradient in gradients]
    factor = (most / torch.stack(squares).sum(0).sqrt()).clamp(max=1.0)
    return tuple(g * factor.view(-1, *[1] * (g.ndim - 1)) for g in gradients)
