"""How far a sharpened model's answers and its predictions on text are from what they should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

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
DIVERGENCE = 0.25
"""The share of what text pays that is the divergence from the original model's predictions."""


def answer_logits(reader: Reader, groups: Sequence[Sequence[Prompt]]) -> Tensor:
    """Return the logits of the answers to groups of prompts, a row a token, one behind another.

    What the prompts of a group have in common at their beginning is read once, where the model
    allows it.
    """
    return reader.logits(reader.branch_states(*_stems_and_branches(groups)))


def text_states_and_answer_logits(
    reader: Reader, texts: list[list[int]], groups: Sequence[Sequence[Prompt]]
) -> tuple[Tensor, Tensor]:
    """Return the states of texts and the logits of answers, read in one pass."""
    states, of_answers = reader.states_together(texts, *_stems_and_branches(groups))
    return states, reader.logits(of_answers)


def _stems_and_branches(
    groups: Sequence[Sequence[Prompt]],
) -> tuple[list[list[int]], list[list[list[int]]], list[int]]:
    """Return what the prompts of each group have in common, what follows, and their answers' sizes.

    What follows has the answers in it, but for the last token of each.
    """
    stems, branches = [], []
    for prompts in groups:
        shared = alike([prompt.tokens[:-1] for prompt in prompts])
        stems.append(prompts[0].tokens[:shared])
        branches.append([[*prompt.tokens[shared:], *prompt.answer[:-1]] for prompt in prompts])
    return stems, branches, [len(prompt.answer) for prompts in groups for prompt in prompts]


def answer_losses(logits: Tensor, prompts: Sequence[Prompt]) -> Tensor:
    """Return the mean loss of every answer's tokens."""
    sizes = torch.tensor([len(prompt.answer) for prompt in prompts], device=logits.device)
    losses = cross_entropy(logits, _wanted(logits, prompts), reduction="none")
    numbers = torch.arange(len(prompts), device=logits.device)
    owners = numbers.repeat_interleave(sizes, output_size=losses.shape[0])
    # A product, since a GPU's sums by index come out a little different every time.
    return ((owners == numbers[:, None]) / sizes[:, None]).to(losses) @ losses


def shortfall(losses: Tensor) -> Tensor:
    """Return how much answers fall short, from 0 to 1/Q, by their losses: (1 − e^(−Q·loss))/Q.

    Its gradient is that of the loss times e^(−Q·loss). An answer that is out of reach, such as one
    that stands before its key, would pull hardest of all by its loss, in vain; so it is let go, and
    those that are nearly right count. (The generalized cross entropy of Zhang and Sabuncu, 2018.)
    """
    return -torch.expm1(-Q * losses) / Q


def are_right(logits: Tensor, prompts: Sequence[Prompt]) -> list[bool]:
    """Tell of every answer whether each of its tokens is the likeliest."""
    hits = (logits.argmax(-1) == _wanted(logits, prompts)).cpu()
    sizes = [len(prompt.answer) for prompt in prompts]
    return [bool(some.all()) for some in torch.split(hits, sizes)]


def _wanted(logits: Tensor, prompts: Sequence[Prompt]) -> Tensor:
    tokens = [token for prompt in prompts for token in prompt.answer]
    return torch.tensor(tokens, device=logits.device)


Nats = TypeVar("Nats", float, Tensor)


def price(divergence: Nats, growth: Nats) -> Nats:
    """Return what text pays: a quarter by the divergence, and the rest by its loss's growth.

    The divergence alone would forbid what text gains by as well. The loss alone would let the
    model forget what these texts do not show.
    """
    return growth + DIVERGENCE * (divergence - growth)


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
        """Return what text pays."""
        return price(self.divergence, self.loss - self.original_loss)


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
