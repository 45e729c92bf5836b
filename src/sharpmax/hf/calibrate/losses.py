"""How far a sharpened model's answers and its predictions on text are from what they should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax, nll_loss
from torch.utils.checkpoint import checkpoint

from sharpmax.hf.branches import alike
from sharpmax.hf.reader import TOKENS_AT_ONCE

if TYPE_CHECKING:
    from sharpmax.hf.reader import Reader
    from sharpmax.tasks.key_value import Prompt

Q = 0.5
"""At 0 answers would count by their loss, at 1 by their probability."""


def answer_logits(reader: Reader, groups: Sequence[Sequence[Prompt]]) -> list[list[Tensor]]:
    """Return the logits of the answers to groups of prompts, a row a token.

    What the prompts of a group have in common at their beginning is read once, where the model
    allows it.
    """
    return _of_answers(reader, groups, reader.branch_states(*_stems_and_branches(groups)))


def text_states_and_answer_logits(
    reader: Reader, texts: list[list[int]], groups: Sequence[Sequence[Prompt]]
) -> tuple[Tensor, list[list[Tensor]]]:
    """Return the states of texts and the logits of answers, read in one pass if there are both."""
    if not groups:
        return reader.states(texts), []
    states, of_branches = reader.states_together(texts, *_stems_and_branches(groups))
    return states, _of_answers(reader, groups, of_branches)


def _stems_and_branches(
    groups: Sequence[Sequence[Prompt]],
) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Return what the prompts of each group have in common, and what follows, answers included."""
    stems, branches = [], []
    for prompts in groups:
        shared = alike([prompt.tokens[:-1] for prompt in prompts])
        stems.append(prompts[0].tokens[:shared])
        branches.append([[*prompt.tokens[shared:], *prompt.answer[:-1]] for prompt in prompts])
    return stems, branches


def _of_answers(
    reader: Reader, groups: Sequence[Sequence[Prompt]], states_of_groups: list[list[Tensor]]
) -> list[list[Tensor]]:
    found = []
    for prompts, states in zip(groups, states_of_groups, strict=True):
        sizes = [len(prompt.answer) for prompt in prompts]
        said = [state[-size:] for state, size in zip(states, sizes, strict=True)]
        found.append(list(torch.split(reader.logits(torch.cat(said)), sizes)))
    return found


def answer_losses(logits: list[Tensor], prompts: Sequence[Prompt]) -> Tensor:
    """Return the mean loss of every answer's tokens."""
    return torch.stack(
        [
            cross_entropy(row, torch.tensor(prompt.answer, device=row.device))
            for row, prompt in zip(logits, prompts, strict=True)
        ]
    )


def shortfall(losses: Tensor) -> Tensor:
    """Return how much answers fall short, from 0 to 1/Q, by their losses: (1 − e^(−Q·loss))/Q.

    Its gradient is that of the loss times e^(−Q·loss). An answer that is out of reach, such as one
    that stands before its key, would pull hardest of all by its loss, in vain; so it is let go, and
    those that are nearly right count. (The generalized cross entropy of Zhang and Sabuncu, 2018.)
    """
    return -torch.expm1(-Q * losses) / Q


def are_right(logits: list[Tensor], prompts: Sequence[Prompt]) -> list[bool]:
    """Tell of every answer whether each of its tokens is the likeliest."""
    return [
        row.argmax(-1).tolist() == prompt.answer
        for row, prompt in zip(logits, prompts, strict=True)
    ]


class OfText(NamedTuple):
    """Means over the tokens of some texts, in nats.

    Attributes:
        divergence: KL(original ‖ sharpened) of the predictions.
        loss: Of the text under the sharpened model.
        original_loss: Under the original one.
    """

    divergence: Tensor
    loss: Tensor
    original_loss: Tensor

    def price(self) -> Tensor:
        """Return what text pays: half the divergence, and half by what its loss has grown.

        The divergence alone would forbid what text gains by as well. The loss alone would let the
        model forget what these texts do not show.
        """
        return (self.divergence + self.loss - self.original_loss) / 2


def of_text(reader: Reader, states: Tensor, original: Tensor, texts: Sequence[list[int]]) -> OfText:
    """Return how far the predictions on texts are from the original model's, and from the texts.

    The logits over the vocabulary are made a few hundred tokens at a time, and made again for the
    gradient.
    """

    def sums(some: Tensor, wanted: Tensor, following: Tensor) -> Tensor:
        said = log_softmax(reader.logits(some), dim=-1)
        meant = log_softmax(reader.logits(wanted), dim=-1)
        divergence = kl_div(said, meant, reduction="sum", log_target=True)
        losses = [nll_loss(given, following, reduction="sum") for given in (said, meant)]
        return torch.stack([divergence, *losses])

    following = torch.tensor(texts, device=states.device)[:, 1:].flatten()
    states, original = states[:, :-1].flatten(0, 1), original[:, :-1].flatten(0, 1)
    total: Any = 0.0
    for start in range(0, following.shape[0], TOKENS_AT_ONCE):
        part = slice(start, start + TOKENS_AT_ONCE)
        total = total + checkpoint(
            sums, states[part], original[part], following[part], use_reentrant=False
        )
    return OfText(*(total / following.shape[0]))
