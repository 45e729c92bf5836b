"""Prompts of a given length in tokens: as many pairs as fit, and a question for one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sharpmax.tasks.key_value.templates import Template


@dataclass(frozen=True)
class Prompt:
    """A prompt and its answer, as tokens.

    Attributes:
        tokens: The prompt, up to where the answer begins.
        answer: The answer's tokens.
        depth: Where the line that is asked for stands: 0 first, 1 last.
        pairs: How many lines there are.
    """

    tokens: list[int]
    answer: list[int]
    depth: float
    pairs: int


def make_prompt(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    length: int,
    random: Random,
    depth: float | None = None,
) -> Prompt:
    """Return a prompt that, with its answer, takes at most `length` tokens, and nearly so many.

    Args:
        tokenizer: Of the model that is to answer.
        template: The words around the pairs.
        length: In tokens.
        random: Where keys and values come from.
        depth: Where the line that is asked for stands, from 0 to 1; at random if None.

    Raises:
        ValueError: If not even two lines fit.
    """

    def tokens(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    new_key, new_value = _unlike(template.key, random), _unlike(template.value, random)
    asked_key, asked_value = new_key(), new_value()
    gap = "" if template.question.endswith('"') else " "
    answer = tokens(gap + asked_value)
    question = tokens("\n" + template.question.format(key=asked_key))
    opening = [*_special(tokenizer), *tokens(template.opening)]
    asked = tokens("\n" + template.line.format(key=asked_key, value=asked_value))
    room = length - len(opening) - len(question) - len(answer) - len(asked)
    lines: list[list[int]] = []
    while True:
        line = tokens("\n" + template.line.format(key=new_key(), value=new_value()))
        if len(line) > room:
            break
        lines.append(line)
        room -= len(line)
    if not lines:
        raise ValueError(f"length must have room for two lines and a question, got {length}")
    place = random.randrange(len(lines) + 1) if depth is None else round(depth * len(lines))
    lines.insert(place, asked)
    whole = [*opening, *(token for line in lines for token in line), *question]
    return Prompt(whole, answer, place / (len(lines) - 1), len(lines))


def _unlike(kind: Callable[[Random], str], random: Random) -> Callable[[], str]:
    """Return what makes words of a kind, each but once as long as there are others."""
    made: set[str] = set()

    def new() -> str:
        text = kind(random)
        for _ in range(100):
            if text not in made:
                break
            text = kind(random)
        made.add(text)
        return text

    return new


def _special(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that every text of this tokenizer begins with."""
    with_them = list(tokenizer("a")["input_ids"])
    bare = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    return with_them[: len(with_them) - len(bare)] if with_them[-len(bare) :] == bare else []
