"""Asking a model the questions of CLRS-Text: right answers by algorithm and size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from sharpmax.hf.reader import Reader
from sharpmax.hf.sharpen import context_of, sharpen
from sharpmax.hf.table import share_of
from sharpmax.tasks.clrs.sequences import answer_tokens

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from sharpmax.policy import Policy

AT_ONCE = 64
"""Questions that are answered together."""
RESULT = " | "
"""What stands between the steps of an algorithm and its result."""


@dataclass(frozen=True)
class Answers:
    """The answers of one algorithm and size.

    Attributes:
        case: The model and the policy.
        seed: Of the model's training.
        algorithm: Its name.
        size: Of its input.
        trained: Whether the model was trained on that algorithm and size.
        beyond: Whether it was trained on that algorithm, but on no size as large.
        right: How many results were right, every character of them.
        asked: Of how many.
        share: The one over the other; 0 if nothing was asked.
        low: The lower end of its 95 % interval, by Wilson.
        high: The upper end.
        whole: How many answers were right with all steps that come before the result.
        too_long: Questions that do not fit into the model's context with their answers: not asked.
    """

    case: str
    seed: int
    algorithm: str
    size: int
    trained: bool
    beyond: bool
    right: int
    asked: int
    share: float
    low: float
    high: float
    whole: int
    too_long: int


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    table: pa.Table,
    policy: Policy | None = None,
    *,
    case: str = "plain",
    seed: int = 0,
    trained: Mapping[str, Sequence[int]] | None = None,
    at_once: int = AT_ONCE,
    tell: Callable[[int], None] = lambda _: None,
) -> list[Answers]:
    """Return how many questions of every algorithm and size a model answers rightly.

    It writes its answers greedily, many side by side, each key and value computed once. What a
    model writes greedily is what it finds likeliest, token by token, while it reads: so the right
    answers are read first, all their tokens at once, and only where the model would have gone
    astray it writes on from there, to see whether it comes to the right result all the same. It
    has as many tokens for that as the right answer, and must come to an end.

    Args:
        model: To ask.
        tokenizer: Of the model.
        table: Of samples, as `load` returns it.
        policy: That chooses β of every row of attention meanwhile.
        case: What to call the model under the policy.
        seed: To note: that of its training.
        trained: The sizes that it was trained on, by algorithm.
        at_once: Questions that are answered together.
        tell: Told again and again how many samples are done with.
    """
    samples = table.to_pylist()
    with sharpen(model, policy) if policy is not None else nullcontext():
        outcomes = _outcomes(model, tokenizer, samples, at_once, tell)
    groups: dict[tuple[str, int], list[_Outcome | None]] = {}
    for sample, outcome in zip(samples, outcomes, strict=True):
        groups.setdefault((sample["algorithm"], sample["size"]), []).append(outcome)
    found = []
    for (algorithm, size), group in groups.items():
        asked = [outcome for outcome in group if outcome is not None]
        right = sum(outcome.right for outcome in asked)
        value, low, high = share_of(right, len(asked)) if asked else (0.0, 0.0, 1.0)
        sizes = (trained or {}).get(algorithm, ())
        found.append(
            Answers(
                case=case,
                seed=seed,
                algorithm=algorithm,
                size=size,
                trained=size in sizes,
                beyond=size > max(sizes, default=size),
                right=right,
                asked=len(asked),
                share=value,
                low=low,
                high=high,
                whole=sum(outcome.whole for outcome in asked),
                too_long=len(group) - len(asked),
            )
        )
    return found


class _Outcome(NamedTuple):
    right: bool
    whole: bool


@dataclass(frozen=True)
class _Question:
    """A question and its right answer in tokens, of which the model is known to write so many."""

    number: int
    asked: list[int]
    wanted: list[int]
    sure: int = 0

    @property
    def begun(self) -> list[int]:
        return [*self.asked, *self.wanted[: self.sure]]

    @property
    def left(self) -> int:
        return len(self.wanted) - self.sure


@torch.no_grad()
def _outcomes(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    samples: Sequence[Mapping[str, Any]],
    at_once: int,
    tell: Callable[[int], None],
) -> list[_Outcome | None]:
    """Return of every sample whether its answer is right; None where it is over the context."""
    questions = tokenizer([sample["question"] for sample in samples], verbose=False)["input_ids"]
    answers = answer_tokens(tokenizer, [sample["answer"] for sample in samples])
    context = context_of(model)
    outcomes: list[_Outcome | None] = [None] * len(samples)
    fitting = [
        _Question(number, asked, [*answer, tokenizer.eos_token_id])
        for number, (asked, answer) in enumerate(zip(questions, answers, strict=True))
        if len(asked) + len(answer) + 1 <= context
    ]
    tell(len(samples) - len(fitting))
    reader, astray = Reader(model), []
    fitting.sort(key=lambda question: len(question.asked) + len(question.wanted))
    for part in _parts(fitting, at_once, context):
        for question in _read(reader, part):
            if question.left:
                astray.append(question)
            else:
                outcomes[question.number] = _Outcome(right=True, whole=True)
                tell(1)
    astray.sort(key=lambda question: (question.left, len(question.begun)))
    for part in _parts(astray, at_once, context):
        for question, text in zip(part, _written(model, tokenizer, part), strict=True):
            wanted = samples[question.number]["answer"].strip()
            result = text is not None and text.rsplit(RESULT, 1)[-1] == wanted.rsplit(RESULT, 1)[-1]
            outcomes[question.number] = _Outcome(right=result, whole=text == wanted)
        tell(len(part))
    return outcomes


def _parts(
    questions: Sequence[_Question], count: int, context: float
) -> Iterator[Sequence[_Question]]:
    """Yield questions that can be answered together: each has room for what any other needs."""
    part: list[_Question] = []
    for question in questions:
        more = [*part, question]
        room = context - max(len(one.begun) for one in more)
        if part and (len(part) == count or room < max(one.left for one in more)):
            yield part
            more = [question]
        part = more
    if part:
        yield part


def _read(reader: Reader, questions: Sequence[_Question]) -> Iterator[_Question]:
    """Yield the questions with as much of their answers as the model would write by itself."""
    states = reader.states([[*question.asked, *question.wanted[:-1]] for question in questions])
    for question, state in zip(questions, states, strict=True):
        first = len(question.asked) - 1
        likeliest = reader.logits(state[first : first + len(question.wanted)]).argmax(-1)
        wrong = likeliest.cpu() != torch.tensor(question.wanted)
        yield replace(question, sure=int(torch.cat([wrong, wrong.new_ones(1)]).int().argmax()))


def _written(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, questions: Sequence[_Question]
) -> list[str | None]:
    """Return the answers that the model gives; None where one does not end in time."""
    longest = max(len(question.begun) for question in questions)
    filling = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    tokens = torch.full((len(questions), longest), filling)
    mask = torch.zeros((len(questions), longest), dtype=torch.long)
    for row, question in enumerate(questions):
        tokens[row, longest - len(question.begun) :] = torch.tensor(question.begun)
        mask[row, longest - len(question.begun) :] = 1
    out: Any = model.generate(  # type: ignore[operator]
        tokens.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=max(question.left for question in questions),
        do_sample=False,
        pad_token_id=filling,
        eos_token_id=tokenizer.eos_token_id,
    )
    found: list[str | None] = []
    for question, row in zip(questions, out[:, longest:].tolist(), strict=True):
        written = row[: question.left]
        if tokenizer.eos_token_id not in written:
            found.append(None)
            continue
        own = written[: written.index(tokenizer.eos_token_id)]
        text = tokenizer.decode([*question.wanted[: question.sure], *own], skip_special_tokens=True)
        found.append(str(text).strip())
    return found
