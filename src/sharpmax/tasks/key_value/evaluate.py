"""How often a model finds the value, by length and by depth."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch

from sharpmax.tasks.key_value.prompts import Prompt, make_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from sharpmax.tasks.key_value.templates import Template


@dataclass(frozen=True)
class Cell:
    """The answers at one length and one depth.

    Attributes:
        length: In tokens.
        depth: Where the line that is asked for stands: 0 first, 1 last.
        right: How many answers were right, every token of them.
        prompts: Of how many.
    """

    length: int
    depth: float
    right: int
    prompts: int


def retrieval(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    lengths: Sequence[int],
    depths: Sequence[float],
    prompts: int,
    *,
    seed: int = 0,
    tell: Callable[[int], None] = lambda _: None,
) -> list[Cell]:
    """Ask a model for values at several lengths and depths, `prompts` times in each cell.

    The same seed gives the same prompts, whatever the model's policy. `tell` is told after
    every prompt how many tokens it had.
    """
    cells = []
    for length in lengths:
        for depth in depths:
            random = Random(zlib.crc32(f"{seed} {length} {depth} {template.line}".encode()))
            right = 0
            for _ in range(prompts):
                prompt = make_prompt(tokenizer, template, length, random, depth)
                right += is_found(model, prompt)
                tell(length)
            cells.append(Cell(length, depth, right, prompts))
    return cells


@torch.no_grad()
def is_found(model: PreTrainedModel, prompt: Prompt) -> bool:
    """Tell whether the model, writing greedily, would give the answer, every token of it.

    That is so if each token of the answer is the likeliest after those before it: one pass tells.
    """
    tokens = torch.tensor([[*prompt.tokens, *prompt.answer]], device=model.device)
    count = len(prompt.answer)
    logits = model(tokens[:, :-1], use_cache=False, logits_to_keep=count).logits[0, -count:]
    return bool((logits.argmax(-1) == tokens[0, -count:]).all())
