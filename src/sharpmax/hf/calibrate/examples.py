"""What a policy is fitted to: prompts with their answers, and windows of text."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from sharpmax.hf.branches import FILLED_TO
from sharpmax.hf.texts import prose
from sharpmax.tasks.key_value import TEMPLATES, Prompt, Template, drawn_template, make_prompts
from sharpmax.tasks.key_value.prompts import NoRoomError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sharpmax.hf.calibrate.settings import Settings

CHECKED_SHARE = 8
"""The last of so many parts of the text is looked at, and not fitted to."""
ENDS = 0.2
"""The share of prompts that ask for the first line or the last, of those that share a text only
one: what a model finds before it is fitted at all, it must not lose."""
QUESTION = 28
"""Tokens that a question and its answer have, about."""
CHECKED_TOGETHER = 4
"""Questions for one text among the prompts to look at: fewer, so that there are more texts."""
TRIES = 100
"""Templates to try, until one has room for its lines."""
CHECKED_QUESTIONS = 4
"""Of so many questions, one is looked at, and not fitted to."""


class Question(NamedTuple):
    """A question of the user's own, with all that is needed to answer it, and the answer."""

    prompt: str
    answer: str

    @staticmethod
    def read(text: str) -> list[Question]:
        """Return the questions of a file of JSON objects, one a line.

        Raises:
            ValueError: If a line is none, or there is no line.
        """
        found = []
        for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
            if not line.strip():
                continue
            try:
                given = json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number} is not JSON: {error}") from None
            if not isinstance(given, dict):
                raise ValueError(f"line {number} is not an object with a prompt and an answer")
            for name in Question._fields:
                if not isinstance(given.get(name), str) or not given[name].strip():
                    raise ValueError(
                        f"line {number} must have {name!r} as text, got {given.get(name)!r}"
                    )
            found.append(Question(given["prompt"], given["answer"]))
        if not found:
            raise ValueError("there are no questions in it")
        return found


@dataclass(frozen=True)
class Batch:
    """The sequences of one step.

    Attributes:
        prompts: Each with its answer, in groups that ask for other lines of the same text.
        texts: Each of as many tokens as the others.
    """

    prompts: list[list[Prompt]]
    texts: list[list[int]]


class Examples:
    """Prompts and texts of a calibration: the same step has the same, in whatever run.

    Args:
        tokenizer: Of the model.
        settings: Of the calibration.
        text: To keep the predictions on, or several; English prose if None. The last eighth of each
            is looked at and not fitted to.
        questions: To fit to as well, as a share of the prompts, and one in four to look at.

    Raises:
        ValueError: If the text is too short, or a question too long.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        settings: Settings,
        text: str | Sequence[str] | None = None,
        questions: Sequence[Question] = (),
    ) -> None:
        self.tokenizer, self.settings = tokenizer, settings
        self._own = [self._question(question) for question in questions]
        if 0 < len(self._own) < CHECKED_QUESTIONS:
            raise ValueError(
                f"questions must be at least {CHECKED_QUESTIONS}, got {len(self._own)}"
            )
        if self._own and not settings.own:
            raise ValueError("own must be above 0 where there are questions, got 0")
        texts = [prose()] if text is None else [text] if isinstance(text, str) else text
        if not isinstance(texts, Sequence) or not all(isinstance(some, str) for some in texts):
            raise TypeError(f"text must be a text or several, each a str, got {text!r:.60}")
        texts = list(texts) or [""]
        whole = json.dumps([text, [list(question) for question in questions]])
        self.digest = hashlib.sha256(whole.encode()).hexdigest()
        self._fitted: list[int] = []
        self._checked: list[int] = []
        for tokens in tokenizer(texts, verbose=False)["input_ids"]:
            cut = len(tokens) * (CHECKED_SHARE - 1) // CHECKED_SHARE
            self._fitted += tokens[:cut]
            self._checked += tokens[cut:]
        self._start = self._fitted[:1]  # what a text begins with, every window does
        if min(len(self._fitted), len(self._checked)) < settings.length:
            count = len(self._fitted) + len(self._checked)
            raise ValueError(
                f"text has {count:,} tokens, and {CHECKED_SHARE * settings.length:,} are the "
                f"least for windows of {settings.length:,}"
            )
        self._only_own = bool(self._own) and settings.own == 1
        if not self._only_own:
            for name in (*settings.templates, *settings.checked):
                # which says if there is no room
                self._prompts(TEMPLATES[name], settings.shortest, Random(0), 1)

    def batch(self, step: int) -> Batch:
        """Return the sequences of a step, all of about one length.

        That is in turn half the longest, the longest, which both are looked at, and any. There are
        more of shorter ones, so that steps of all lengths read about as many tokens; but not with
        questions of the user's own, which are as long as they are.
        """
        settings = self.settings
        random = self._random("step", step)
        exponent = random.uniform(math.log(settings.shortest), math.log(settings.length))
        any_length = max(settings.shortest, int(math.exp(exponent)) // FILLED_TO * FILLED_TO)
        length = (*self._lengths, any_length)[step % (len(self._lengths) + 1)]
        own = [q for i, q in enumerate(self._own) if (i + 1) % CHECKED_QUESTIONS]
        drawn = []
        if own:  # a part of one comes in a part of the steps
            count, part = divmod(settings.own * settings.prompts, 1)
            drawn = random.choices(own, k=int(count) + (random.random() < part))
        room = QUESTION * settings.asked
        times = 1 if own else round((settings.length + room) / (length + room))
        prompts = [[question] for question in drawn]
        while len(prompts) < times * settings.prompts:
            prompts.append(self._any_prompts(length, random))
        texts = []
        for _ in range(times * settings.texts):
            begin = random.randrange(len(self._fitted) - length + 1)
            texts.append([*self._start, *self._fitted[begin + 1 : begin + length]])
        return Batch(prompts, texts)

    def checked_prompts(self) -> list[list[Prompt]]:
        """Return the prompts to look at: of other templates, at the longest length and at half.

        Questions of the user's own come last.
        """
        settings = self.settings
        alone = [[question] for question in self._own[CHECKED_QUESTIONS - 1 :: CHECKED_QUESTIONS]]
        if self._only_own:
            return alone
        together = min(settings.asked, CHECKED_TOGETHER)
        return [
            self._prompts(
                TEMPLATES[name],
                length,
                self._random("check", length, name, number),
                min(together, settings.check_prompts - number),
            )
            for length in self._lengths
            for name in settings.checked
            for number in range(0, settings.check_prompts, together)
        ] + alone

    @property
    def own_checked(self) -> int:
        """How many of the prompts to look at, the last, are questions of the user's own."""
        return len(self._own) // CHECKED_QUESTIONS

    def checked_texts(self) -> list[list[int]]:
        """Return the windows of text to look at."""
        return self._windows(self._checked)

    def checked_text(self) -> str:
        """Return the part of the text that nothing is fitted to, which is looked at."""
        text = self.tokenizer.decode(self._checked, skip_special_tokens=True)
        assert isinstance(text, str)
        return text

    @property
    def checked_tokens(self) -> int:
        """How many tokens that part has."""
        return len(self._checked)

    def fitted_texts(self) -> list[list[int]]:
        """Return as many windows of the text that is fitted to."""
        return self._windows(self._fitted)

    def _windows(self, tokens: list[int]) -> list[list[int]]:
        """Return windows as far apart as can be."""
        length, count = self.settings.length, self.settings.check_texts
        last = len(tokens) - length
        begins = [round(last * i / max(1, count - 1)) for i in range(count)]
        return [[*self._start, *tokens[begin + 1 : begin + length]] for begin in begins]

    @property
    def _lengths(self) -> list[int]:
        """Half the longest length, and the longest: what steps come back to, and are looked at."""
        settings = self.settings
        return sorted({max(settings.shortest, settings.length // 2), settings.length})

    def _any_prompts(self, length: int, random: Random) -> list[Prompt]:
        """Return prompts of a drawn template, if there is room for it, or of a named one."""
        settings = self.settings
        if random.random() < settings.drawn:
            with contextlib.suppress(NoRoomError):
                return self._prompts(drawn_template(random), length, random, settings.asked)
        for left in reversed(range(TRIES)):  # each of these has found room once
            template = TEMPLATES[random.choice(settings.templates)]
            try:
                return self._prompts(template, length, random, settings.asked)
            except NoRoomError:
                if not left:
                    raise
        raise AssertionError("there is at least one try")

    def _prompts(self, template: Template, length: int, random: Random, count: int) -> list[Prompt]:
        depth = random.choice((0.0, 1.0)) if random.random() < ENDS * count else None
        return make_prompts(self.tokenizer, template, length, random, count, depth, words="fit")

    def _question(self, question: Question) -> Prompt:
        if not isinstance(question, Question):
            raise TypeError(f"questions must be of type Question, got {question!r:.60}")
        if not question.prompt.strip() or not question.answer.strip():
            raise ValueError(f"a question must have a prompt and an answer, got {question!r:.60}")
        tokens: list[int] = self.tokenizer(question.prompt, verbose=False)["input_ids"]
        gap = "" if question.prompt[-1:].isspace() else " "
        answer: list[int] = self.tokenizer(
            gap + question.answer.strip(), add_special_tokens=False, verbose=False
        )["input_ids"]
        if len(tokens) + len(answer) > self.settings.length:
            raise ValueError(
                f"a question has {len(tokens) + len(answer):,} tokens, more than the length of "
                f"{self.settings.length:,}: {question.prompt[:40]!r}…"
            )
        return Prompt(tokens, answer, 0.0, 1)

    def _random(self, *what: object) -> Random:
        return Random(zlib.crc32(f"{self.settings.seed} {what}".encode()))
