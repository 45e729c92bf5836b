"""How often a model finds the value, by length and by depth."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch

from sharpmax.tasks.key_value.prompts import Prompt, make_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from sharpmax.tasks.key_value.templates import Template

Place = tuple[int, float]
"""A length in tokens, and where in it the line that is asked for stands."""
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


def prompts_by_place(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    lengths: Sequence[int],
    depths: Sequence[float],
    prompts: int,
    *,
    seed: int = 0,
) -> dict[Place, list[Prompt]]:
    """Return `prompts` prompts for each length and depth; the first of more are those of fewer."""
    made = {}
    for length in lengths:
        for depth in depths:
            random = Random(zlib.crc32(f"{seed} {length} {depth} {template.line}".encode()))
            made[length, depth] = [
                make_prompt(tokenizer, template, length, random, depth) for _ in range(prompts)
            ]
    return made


def retrieval(
    model: PreTrainedModel,
    prompts: Mapping[Place, Sequence[Prompt]],
    *,
    tell: Callable[[int], None] = lambda _: None,
) -> list[Cell]:
    """Ask a model for the values that prompts ask for, a cell for each length and depth.

    `tell` is told again and again how many tokens have been read since.
    """
    cells = []
    for length in dict.fromkeys(length for length, _ in prompts):
        here = {depth: some for (its, depth), some in prompts.items() if its == length}
        asked = [prompt for some in here.values() for prompt in some]
        on_cpu = model.device.type == "cpu"
        at_once = 1 if on_cpu else max(1, min(MOST_AT_ONCE, TOKENS_AT_ONCE // length))
        right: list[bool] = []
        for start in range(0, len(asked), at_once):
            part = asked[start : start + at_once]
            right += are_found(model, part)
            tell(length * len(part))
        answers = iter(right)
        for depth, some in here.items():
            found = sum(itertools.islice(answers, len(some)))
            cells.append(Cell(length, depth, found, len(some)))
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
