"""How much the predictions on text depend on each head's numbers: the diagonal of Fisher's matrix.

To second order the divergence from the original model is ½·Σ F·θ² and mixed terms. F = E[g²], where
g is the gradient of the loss of tokens that the model itself would write. Numbers that text hardly
feels can take long steps, and the others only short ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from sharpmax.hf.reader import TOKENS_AT_ONCE

if TYPE_CHECKING:
    from sharpmax.hf.reader import Reader

LONGEST = 2.0
"""The longest step over the typical one of its kind, and that over the shortest.

Numbers that nothing feels go astray as fast as their steps are long.
"""


def squares(
    reader: Reader,
    texts: list[list[int]],
    numbers: dict[str, Tensor],
    rounds: int,
    seed: int,
) -> dict[str, Tensor]:
    """Return the mean square of the gradient by each number, up to a common factor.

    Args:
        reader: Of the model, which is sharpened with these numbers.
        texts: To read.
        numbers: To differentiate by.
        rounds: How often a text is read, with other tokens drawn.
        seed: Of these.
    """
    generator = torch.Generator(reader.model.device).manual_seed(seed)
    found = {name: torch.zeros_like(value) for name, value in numbers.items()}
    for _ in range(rounds):
        for text in texts:
            loss = _loss_of_own_tokens(reader, reader.states([text])[0], generator)
            gradients = torch.autograd.grad(loss, list(numbers.values()), allow_unused=True)
            for name, gradient in zip(found, gradients, strict=True):
                if gradient is not None:  # no layer may have a sink
                    found[name] += gradient.square()
    return found


def step_lengths(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the length of a step for each number, 1 for a typical one: 1/√F, within bounds.

    What is typical is told for every kind of numbers by itself. Those without any effect, such as
    those of layers without attention, get the longest.
    """

    def lengths(value: Tensor) -> Tensor:
        felt = value[value > 0]
        typical = felt.log().median().exp() if felt.numel() else value.new_ones(())
        return (typical / value.clamp(min=1e-30)).sqrt().clamp(1 / LONGEST, LONGEST)

    return {name: lengths(value) for name, value in found.items()}


def _loss_of_own_tokens(reader: Reader, states: Tensor, generator: torch.Generator) -> Tensor:
    """Return the loss of tokens drawn from the model's own predictions."""

    def of(some: Tensor, uniform: Tensor) -> Tensor:
        logits = reader.logits(some)
        with torch.no_grad():
            drawn = logits.softmax(-1).cumsum(-1).sub_(uniform).gt_(0).argmax(-1)
        return cross_entropy(logits, drawn, reduction="sum")

    uniform = torch.rand(states.shape[0], 1, generator=generator, device=states.device)
    total = states.new_zeros((), dtype=torch.float32)
    for start in range(0, states.shape[0], TOKENS_AT_ONCE):
        part = slice(start, start + TOKENS_AT_ONCE)
        total = total + checkpoint(of, states[part], uniform[part], use_reentrant=False)
    return total
