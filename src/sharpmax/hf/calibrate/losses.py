"""How far a sharpened model's answers and its predictions on text are from what they should be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax
from torch.utils.checkpoint import checkpoint

from sharpmax.hf.evaluate import TOKENS_AT_ONCE, has_plain_head, logits_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sharpmax.tasks.key_value import Prompt


class Reader:
    """Reads sequences with a model, and makes logits only of the tokens that are wanted."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        few = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
        with torch.no_grad():
            self._has_plain_head = has_plain_head(model, few)

    def states(self, sequences: list[list[int]]) -> Tensor:
        """Return what logits are made of, for every token of every sequence.

        Shorter ones are filled up behind their end, where nothing that counts can see it.
        """
        longest = max(map(len, sequences))
        rows = [[*tokens, *[tokens[-1]] * (longest - len(tokens))] for tokens in sequences]
        tokens = torch.tensor(rows, device=self.model.device)
        if self._has_plain_head:
            hidden: Tensor = self.model.base_model(tokens, use_cache=False).last_hidden_state
            return hidden
        logits: Tensor = self.model(tokens, use_cache=False).logits
        return logits

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits of some tokens, in float32 or float64."""
        return logits_of(self.model, states) if self._has_plain_head else states.float()


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
