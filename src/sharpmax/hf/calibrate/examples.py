"""What a policy is fitted to: prompts with their answers, and windows of text."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from sharpmax.hf.texts import prose
from sharpmax.tasks.key_value import TEMPLATES, Prompt, make_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sharpmax.hf.calibrate.settings import Settings

CHECKED_SHARE = 8
"""The last of so many parts of the text is looked at, and not fitted to."""


@dataclass(frozen=True)
class Batch:
    """The sequences of one step.

    Attributes:
        prompts: Each with its answer.
        texts: Each of as many tokens as the others.
    """

    prompts: list[Prompt]
    texts: list[list[int]]


class Examples:
    """Prompts and texts of a calibration: the same step has the same, in whatever run.

    Args:
        tokenizer: Of the model.
        settings: Of the calibration.
        text: To keep the predictions on; English prose if None.

    Raises:
        ValueError: If the text is too short.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, settings: Settings, text: str | None = None
    ) -> None:
        self.tokenizer, self.settings = tokenizer, settings
        tokens: list[int] = tokenizer(prose() if text is None else text, verbose=False)["input_ids"]
        start = tokens[:1]  # what a text begins with, every window does
        fitted = len(tokens) * (CHECKED_SHARE - 1) // CHECKED_SHARE
        room = len(tokens) - fitted
        if min(fitted, room) < settings.length:
            raise ValueError(
                f"text has {len(tokens):,} tokens, and {CHECKED_SHARE * settings.length:,} are the "
                f"least for windows of {settings.length:,}"
            )
        self._start, self._fitted, self._checked = start, tokens[:fitted], tokens[fitted:]

    def batch(self, step: int) -> Batch:
        """Return the sequences of a step, all of about one length."""
        settings = self.settings
        random = self._random("step", step)
        exponent = random.uniform(math.log(settings.shortest), math.log(settings.length))
        length = settings.length if step % 2 else round(math.exp(exponent))
        names = random.sample(settings.templates, min(settings.prompts, len(settings.templates)))
        names += random.choices(settings.templates, k=settings.prompts - len(names))
        prompts = [self._prompt(name, length, random, "fit") for name in names]
        texts = []
        for _ in range(settings.texts):
            begin = random.randrange(len(self._fitted) - length + 1)
            texts.append([*self._start, *self._fitted[begin + 1 : begin + length]])
        return Batch(prompts, texts)

    def checked_prompts(self) -> list[Prompt]:
        """Return the prompts to look at: of other templates, at the longest length and at half."""
        settings = self.settings
        lengths = [length for length in (settings.length // 2, settings.length) if length >= 64]
        return [
            self._prompt(name, length, self._random("check", length, name, number), "fit")
            for length in lengths
            for name in settings.checked
            for number in range(settings.check_prompts)
        ]

    def checked_texts(self) -> list[list[int]]:
        """Return the windows of text to look at."""
        return self._windows(self._checked)

    def fitted_texts(self) -> list[list[int]]:
        """Return as many windows of the text that is fitted to."""
        return self._windows(self._fitted)

    def _windows(self, tokens: list[int]) -> list[list[int]]:
        """Return windows as far apart as can be."""
        length, count = self.settings.length, self.settings.check_texts
        last = len(tokens) - length
        begins = [round(last * i / max(1, count - 1)) for i in range(count)]
        return [[*self._start, *tokens[begin + 1 : begin + length]] for begin in begins]

    def _prompt(self, name: str, length: int, random: Random, words: str) -> Prompt:
        template = TEMPLATES[name]
        return make_prompt(self.tokenizer, template, length, random, words=words)  # type: ignore[arg-type]

    def _random(self, *what: object) -> Random:
        return Random(zlib.crc32(f"{self.settings.seed} {what}".encode()))
