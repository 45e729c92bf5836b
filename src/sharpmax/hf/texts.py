"""What a model reads while it is looked at: prose, the paper's question, or pairs to find."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAXIMUM, KEYS = "max", "keys"
LETTERS_A_TOKEN = 6
"""Of English, and then some."""
MARGIN = 16
"""Tokens at the end of a text that was cut, which the cut may have changed."""

Reading = Callable[[int, int], list[int]]
"""From a length and a sample's number to so many tokens, or up to a line fewer."""


def prose() -> str:
    """Return 700 kB of English that every Python has: the language's own reference."""
    from pydoc_data import topics

    return "\n\n".join(topics.topics[name] for name in sorted(topics.topics))


def reading(tokenizer: PreTrainedTokenizerBase, text: str | None) -> Reading:
    """Return what gives the tokens to read.

    Args:
        tokenizer: Of the model.
        text: "max" for the paper's question (Figure 3), "keys" for pairs of which one is asked
            for, None for prose, or the text itself.

    Raises:
        ValueError: If the text is empty, or later if it has fewer tokens than are asked for.
    """
    if text == MAXIMUM:
        return lambda length, sample: _question_for_the_maximum(tokenizer, length, sample)
    if text == KEYS:
        from sharpmax.tasks.key_value import TEMPLATES, make_prompt

        return lambda length, sample: (
            make_prompt(tokenizer, TEMPLATES["code"], length, Random(sample)).tokens
        )
    if text is not None and not text.strip():
        raise ValueError("text must not be empty")
    whole = prose() if text is None else text

    def part(length: int, sample: int) -> list[int]:
        tokens = _first_tokens(tokenizer, whole, (sample + 1) * length)
        start, end = sample * length, (sample + 1) * length
        if len(tokens) < end:
            raise ValueError(f"text has {len(tokens):,} tokens, and {end:,} are to be read")
        return tokens[:1] + tokens[start + 1 : end]  # what a text begins with, every part does

    return part


def _first_tokens(tokenizer: PreTrainedTokenizerBase, text: str, count: int) -> list[int]:
    """Return at least so many of a text's first tokens, or all that it has."""
    letters = LETTERS_A_TOKEN * count
    while True:
        tokens: list[int] = tokenizer(text[:letters], verbose=False)["input_ids"]
        if letters >= len(text) or len(tokens) > count + MARGIN:
            return tokens if letters >= len(text) else tokens[:-MARGIN]
        letters *= 2


def ends_in_a_question(text: str | None) -> bool:
    """Tell whether a text's last token is the one that matters, at every length anew."""
    return text in (MAXIMUM, KEYS)


def _question_for_the_maximum(
    tokenizer: PreTrainedTokenizerBase, length: int, sample: int
) -> list[int]:
    """Return the paper's prompt with as many numbers as fit."""

    def prompt(count: int) -> list[int]:
        random = Random(sample)
        numbers = " ".join(str(random.randrange(1000)) for _ in range(count))
        text = f"What is the maximum in the following sequence: {numbers}? The maximum is:"
        tokens: list[int] = tokenizer(text, verbose=False)["input_ids"]
        return tokens

    few, many = 1, length
    if len(prompt(few)) > length:
        raise ValueError(f"length must have room for the question, got {length}")
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if len(prompt(middle)) <= length else (few, middle)
    return prompt(few)
