"""Prompts of a given length in tokens: as many pairs as fit, and a question for one of them."""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sharpmax.tasks.key_value.templates import Template

Words = Literal["fit", "test"]
TEST_SHARE = 4
"""Of so many keys, and of so many values, one is for tests."""
LINES_AT_ONCE = 64
MOST_TRIES = 100
"""After which a word may come again."""


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


class NoRoomError(ValueError):
    """Not even two lines fit into a prompt."""


def make_prompt(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    length: int,
    random: Random,
    depth: float | None = None,
    words: Words = "test",
) -> Prompt:
    """Return a prompt that, with its answer, takes at most `length` tokens, and nearly so many.

    Args:
        tokenizer: Of the model that is to answer.
        template: The words around the pairs.
        length: In tokens.
        random: Where keys and values come from.
        depth: Where the line that is asked for stands, from 0 to 1; at random if None.
        words: Which keys and values there are: those of tests, or those to fit something to.

    Raises:
        NoRoomError: If not even two lines fit.
    """
    return make_prompts(tokenizer, template, length, random, 1, depth, words)[0]


def make_prompts(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    length: int,
    random: Random,
    count: int,
    depth: float | None = None,
    words: Words = "test",
) -> list[Prompt]:
    """Return up to `count` prompts of the same lines, which ask for different ones.

    The first is that of `make_prompt`. The others ask for lines at random, as far as there are
    lines whose key stands in no other and whose question is short enough.

    Args:
        tokenizer: As in `make_prompt`, and so are the others.
        template: The words around the pairs.
        length: Of the longest of them, in tokens.
        random: Where keys, values and lines to ask for come from.
        count: Of prompts.
        depth: Of the line that the first asks for.
        words: Which keys and values there are.

    Raises:
        NoRoomError: If not even two lines fit.
    """

    def tokens(*texts: str) -> list[list[int]]:
        found: list[list[int]] = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return found

    def asked(key: str, value: str) -> list[list[int]]:
        return tokens("\n" + template.question.format(key=key), gap + value)

    def drawn() -> Iterator[tuple[tuple[str, str], list[int]]]:
        while True:
            some = [(next(keys), next(values)) for _ in range(LINES_AT_ONCE)]
            yield from zip(some, tokens(*(written(*pair) for pair in some)), strict=True)

    def written(key: str, value: str) -> str:
        return "\n" + template.line.format(key=key, value=value)

    keys, values = _unlike(template.key, random, words), _unlike(template.value, random, words)
    gap = "" if template.question.endswith('"') else " "
    first = next(keys), next(values)
    opening, first_line = tokens(template.opening, written(*first))
    opening = [*_special(tokenizer), *opening]
    question, answer = asked(*first)
    room = length - len(opening) - len(question) - len(answer) - len(first_line)
    pairs, lines = [], []
    for pair, line in drawn():
        if len(line) > room:
            break
        pairs.append(pair)
        lines.append(line)
        room -= len(line)
    if not lines:
        raise NoRoomError(f"length must have room for two lines and a question, got {length}")
    place = random.randrange(len(lines) + 1) if depth is None else round(depth * len(lines))
    pairs.insert(place, first)
    lines.insert(place, first_line)
    text = [*opening, *itertools.chain.from_iterable(lines)]
    prompts = [Prompt([*text, *question], answer, place / (len(lines) - 1), len(lines))]
    if count > 1:
        often = Counter(key for key, _ in pairs)
        others = [i for i, (key, _) in enumerate(pairs) if i != place and often[key] == 1]
        for i in random.sample(others, len(others)):
            question, answer = asked(*pairs[i])
            if len(text) + len(question) + len(answer) <= length:
                stands = i / (len(lines) - 1)
                prompts.append(Prompt([*text, *question], answer, stands, len(lines)))
            if len(prompts) == count:
                break
    return prompts


def is_for_tests(text: str) -> bool:
    """Tell whether a key or a value is for tests, and not for fitting."""
    return zlib.crc32(text.encode()) % TEST_SHARE == 0


def _unlike(kind: Callable[[Random], str], random: Random, words: Words) -> Iterator[str]:
    """Yield words of a kind, each but once as long as there are others; the first never again."""
    made: list[str] = []
    known: set[str] = set()
    tries = 0
    while True:
        text = kind(random)
        tries += 1
        if is_for_tests(text) != (words == "test") or text in made[:1]:
            continue
        if text not in known or tries > MOST_TRIES:
            made.append(text)
            known.add(text)
            tries = 0
            yield text


def _special(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that every text of this tokenizer begins with."""
    with_them = list(tokenizer("a")["input_ids"])
    bare = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    return with_them[: len(with_them) - len(bare)] if with_them[-len(bare) :] == bare else []
