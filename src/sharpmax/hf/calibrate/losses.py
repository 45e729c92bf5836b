"""How far a sharpened model's answers and its predictions on text are from what they should be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax
from torch.utils.checkpoint import checkpoint

from sharpmax.hf.reader import TOKENS_AT_ONCE

if TYPE_CHECKING:
    from sharpmax.hf.reader import Reader
    from sharpmax.tasks.key_value import Prompt


def answer_logits(reader: Reader, states: Tensor, prompts: list[Prompt]) -> list[Tensor]:
    """Return the logits of every prompt's answer, a row a token."""
    found = []
    for state, prompt in zip(states, prompts, strict=True):
        first = len(prompt.tokens) - 1
        found.append(reader.logits(state[first : first + len(prompt.answer)]))
    return found


def answer_losses(logits: list[Tensor], prompts: list[Prompt]) -> list[Tensor]:
    """Return the mean loss of every answer's tokens."""
    return [
        cross_entropy(row, torch.tensor(prompt.answer, device=row.device))
        for row, prompt in zip(logits, prompts, strict=True)
    ]


def divergence(reader: Reader, states: Tensor, original: Tensor) -> Tensor:
    """Return the mean divergence KL(original ‖ sharpened) a token, in nats.

    The logits over the vocabulary are made a few hundred tokens at a time, and made again for the
    gradient.
    """

    def of(some: Tensor, wanted: Tensor) -> Tensor:
        said = log_softmax(reader.logits(some), dim=-1)
        meant = log_softmax(reader.logits(wanted), dim=-1)
        return kl_div(said, meant, reduction="sum", log_target=True)

    states, original = states.flatten(0, 1), original.flatten(0, 1)
    total: Any = 0.0
    for start in range(0, states.shape[0], TOKENS_AT_ONCE):
        part = slice(start, start + TOKENS_AT_ONCE)
        total = total + checkpoint(of, states[part], original[part], use_reentrant=False)
    mean: Tensor = total / states.shape[0]
    return mean
