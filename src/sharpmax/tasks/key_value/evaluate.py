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

TOKENS_AT_ONCE = 2**15
"""Of several prompts that a GPU reads together."""
MOST_AT_ONCE = 16
"""Prompts that it reads together: there are logits of some tokens of each."""


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

    The same seed gives the same prompts, whatever the model's policy. `tell` is told again and
    again how many tokens have been read since.
    """
    cells = []
    for length in lengths:
        asked = []
        for depth in depths:
            random = Random(zlib.crc32(f"{seed} {length} {depth} {template.line}".encode()))
            asked += [
                make_prompt(tokenizer, template, length, random, depth) for _ in range(prompts)
            ]
        on_cpu = model.device.type == "cpu"
        at_once = 1 if on_cpu else max(1, min(MOST_AT_ONCE, TOKENS_AT_ONCE // length))
        right: list[bool] = []
        for start in range(0, len(asked), at_once):
            part = asked[start : start + at_once]
            right += are_found(model, part)
            tell(length * len(part))
        for number, depth in enumerate(depths):
            here = right[number * prompts : (number + 1) * prompts]
            cells.append(Cell(length, depth, sum(here), prompts))
    return cells


@torch.no_grad()
def are_found(model: PreTrainedModel, prompts: Sequence[Prompt]) -> list[bool]:
    """Tell whether the model, writing greedily, would give each answer, every token of it.

    That is so if each token of the answer is the likeliest after those before it: one pass tells.
    Shorter prompts are filled up behind their end, where nothing that counts can see it.
    """
    rows = [[*prompt.tokens, *prompt.answer[:-1]] for prompt in prompts]
    longest = max(map(len, rows))
    filled = [[*row, *[row[-1]] * (longest - len(row))] for row in rows]
    first = min(len(prompt.tokens) for prompt in prompts) - 1
    tokens = torch.tensor(filled, device=model.device)
    likeliest = model(tokens, use_cache=False, logits_to_keep=longest - first).logits.argmax(-1)
    likeliest = likeliest[:, first - longest :].tolist()
    found = []
    for prompt, row in zip(prompts, likeliest, strict=True):
        start = len(prompt.tokens) - 1 - first
        found.append(row[start : start + len(prompt.answer)] == prompt.answer)
    return found
