"""Asking a model the questions of CLRS-Text: right answers by algorithm and size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

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
) -> Iterator[Answers]:
    """Yield how many questions of every algorithm and size a model answers rightly.

    It writes its answers greedily, many side by side, each key and value computed once.

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
    rows = table.to_pylist()
    with sharpen(model, policy) if policy is not None else nullcontext():
        for algorithm, size in dict.fromkeys((row["algorithm"], row["size"]) for row in rows):
            group = [row for row in rows if (row["algorithm"], row["size"]) == (algorithm, size)]
            right, whole, asked = _answered(model, tokenizer, group, at_once)
            value, low, high = share_of(right, asked) if asked else (0.0, 0.0, 1.0)
            yield Answers(
                case=case,
                seed=seed,
                algorithm=algorithm,
                size=size,
                trained=size in (trained or {}).get(algorithm, ()),
                right=right,
                asked=asked,
                share=value,
                low=low,
                high=high,
                whole=whole,
                too_long=len(group) - asked,
            )
            tell(len(group))


@torch.no_grad()
def _answered(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    samples: Sequence[Mapping[str, Any]],
    at_once: int,
) -> tuple[int, int, int]:
    """Return how many results are right, how many answers are with their steps, of how many."""
    questions = tokenizer([s["question"] for s in samples], verbose=False)["input_ids"]
    answers = answer_tokens(tokenizer, [s["answer"] for s in samples])
    context = context_of(model)
    fitting = sorted(
        (len(question), len(answer), i)
        for i, (question, answer) in enumerate(zip(questions, answers, strict=True))
        if len(question) + len(answer) + 1 <= context
    )
    right = whole = 0
    for start in range(0, len(fitting), at_once):
        part = [i for _, _, i in fitting[start : start + at_once]]
        most = max(len(answers[i]) for i in part) + 1
        room = context - max(len(questions[i]) for i in part)
        written = _written(model, tokenizer, [questions[i] for i in part], int(min(most, room)))
        for i, text in zip(part, written, strict=True):
            wanted = samples[i]["answer"].strip()
            right += text.strip().rsplit(RESULT, 1)[-1] == wanted.rsplit(RESULT, 1)[-1]
            whole += text.strip() == wanted
    return right, whole, len(fitting)


def _written(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[list[int]],
    most: int,
) -> list[str]:
    """Return what the model writes after each question, up to so many tokens."""
    longest = max(map(len, questions))
    filling = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    tokens = torch.full((len(questions), longest), filling)
    mask = torch.zeros((len(questions), longest), dtype=torch.long)
    for row, question in enumerate(questions):
        tokens[row, longest - len(question) :] = torch.tensor(question)
        mask[row, longest - len(question) :] = 1
    out: Any = model.generate(  # type: ignore[operator]
        tokens.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=most,
        do_sample=False,
        pad_token_id=filling,
        eos_token_id=tokenizer.eos_token_id,
    )
    texts: list[str] = tokenizer.batch_decode(out[:, longest:], skip_special_tokens=True)
    return texts
