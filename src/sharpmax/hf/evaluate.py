"""What a policy does to a model: its loss on text, what it retrieves, and lm_eval's tasks.

Every policy meets the same texts and prompts, in one run.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from scipy import stats
from torch import Tensor

from sharpmax.hf.reader import Reader
from sharpmax.hf.sharpen import context_of, require_fit, require_interface, sharpen
from sharpmax.hf.table import share_of
from sharpmax.hf.texts import reading
from sharpmax.tasks.key_value import (
    HELD_OUT,
    TEMPLATES,
    Prompt,
    make_prompt,
    prompts_by_place,
    retrieval,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from sharpmax.policy import Policy
    from sharpmax.tasks.key_value.evaluate import Place

TEXT, RETRIEVAL = "text, nats a token", "retrieval: "
LENGTHS = (512, 1024, 2048)
BY_LENGTH = ("niah_", "ruler_")
"""The tasks of lm_eval that make prompts of a length that is asked for."""

Tell = Callable[[int], None]


@dataclass(frozen=True)
class Score:
    """One number of the evaluation, with its 95 % interval.

    Attributes:
        case: The policy's name.
        task: What was done.
        length: In tokens; None where the task has its own.
        depth: Where the line that was asked for stood; None where that has no meaning.
        value: The mean.
        low: The interval's lower end.
        high: Its upper end.
        samples: Of how many texts or prompts.
    """

    case: str
    task: str
    length: int | None
    depth: float | None
    value: float
    low: float
    high: float
    samples: int


@dataclass(frozen=True)
class Plan:
    """What to evaluate.

    Attributes:
        lengths: In tokens; 512, 1,024 and 2,048 as far as the model's context goes if None.
        text: To read; English prose if None.
        windows: How many parts of the text at each length; 0 to leave it out.
        templates: Of the pairs to retrieve; by default those that `calibrate` never sees.
        depths: Where the line that is asked for stands.
        prompts: For each template, length and depth; 0 to leave retrieval out.
        tasks: Of lm_eval.
        limit: Prompts for each task and length.
        seed: Of the prompts.
    """

    lengths: Sequence[int] | None = None
    text: str | None = None
    windows: int = 4
    templates: Sequence[str] = HELD_OUT
    depths: Sequence[float] = (0.0, 0.5, 1.0)
    prompts: int = 8
    tasks: Sequence[str] = ()
    limit: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.templates:
            if name not in TEMPLATES:
                known = ", ".join(TEMPLATES)
                raise ValueError(f"templates must be among {known}, got {name!r}")
        for name in ("lengths", "templates", "depths", "tasks"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))
        if self.lengths is not None and (not self.lengths or min(self.lengths) < 2):
            raise ValueError(f"lengths must be at least 2 tokens, got {list(self.lengths)}")
        if any(not 0 <= depth <= 1 for depth in self.depths):
            raise ValueError(f"depths must be from 0 to 1, got {list(self.depths)}")
        for name, least in (("windows", 0), ("prompts", 0), ("limit", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not (self.windows or self.prompts or self.tasks):
            raise ValueError("there is nothing to evaluate: no windows, no prompts and no tasks")

    def within(self, model: PreTrainedModel) -> Plan:
        """Return the plan with lengths that the model can read.

        Raises:
            ValueError: If one that was asked for is beyond its context.
        """
        most = context_of(model)
        if self.lengths is None:
            fitting = [length for length in LENGTHS if length <= most]
            return replace(self, lengths=fitting or [int(most)])
        if max(self.lengths) > most:
            raise ValueError(
                f"lengths must be within the model's context of {most:,} tokens, "
                f"got {max(self.lengths):,}"
            )
        return self

    def is_done(self, scores: Sequence[Score]) -> bool:
        """Tell whether these are all scores of one policy, lm_eval's tasks aside."""
        read = {score.length for score in scores if score.task == TEXT and score.samples}
        asked = {
            (score.task, score.length, score.depth)
            for score in scores
            if score.task != TEXT and score.samples == self.prompts
        }
        to_ask = {
            (f"{RETRIEVAL}{name}", length, depth)
            for name in self.templates
            for length in self._lengths
            for depth in self.depths
            if self.prompts
        }
        return read == ({*self._lengths} if self.windows else set()) and asked == to_ask

    def tokens(self) -> int:
        """Return how many tokens one policy has to read, lm_eval's tasks aside."""
        each = self.windows + len(self.templates) * len(self.depths) * self.prompts
        return each * sum(self._lengths)

    @property
    def _lengths(self) -> Sequence[int]:
        return LENGTHS if self.lengths is None else self.lengths


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    policies: Mapping[str, Policy | None],
    plan: Plan | None = None,
    tell: Tell = lambda _: None,
) -> list[Score]:
    """Evaluate a model under several policies; None leaves it as it is.

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer.
        policies: By the names that they get in the table.
        plan: What to evaluate.
        tell: Told after every text or prompt how many tokens it had.
    """
    return [score for scores in by_case(model, tokenizer, policies, plan, tell) for score in scores]


def by_case(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    policies: Mapping[str, Policy | None],
    plan: Plan | None = None,
    tell: Tell = lambda _: None,
) -> Iterator[list[Score]]:
    """Yield the scores of one policy after another; what cannot be is told before the first."""
    require_interface(model)
    if not isinstance(policies, Mapping):
        raise TypeError(f"policies must be a dictionary by name, got {type(policies).__name__}")
    plan = (Plan() if plan is None else plan).within(model)
    for policy in policies.values():
        if policy is not None:
            require_fit(model, policy)
    require_possible(plan, tokenizer)
    prompts = _prompts(tokenizer, plan)
    for case, policy in policies.items():
        with contextlib.nullcontext() if policy is None else sharpen(model, policy):
            scores = [
                *_text(case, model, tokenizer, plan, tell),
                *_retrieval(case, model, prompts, tell),
                *_harness(case, model, tokenizer, plan),
            ]
        yield scores


@torch.no_grad()
def text_losses(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Return the loss of every token but the first, in nats, of shape (batch, tokens − 1)."""
    reader = Reader(model)
    return reader.text_losses(reader.states(tokens.tolist()), tokens)


def _text(
    case: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, plan: Plan, tell: Tell
) -> list[Score]:
    if not plan.windows:
        return []
    source = reading(tokenizer, plan.text)
    scores = []
    for length in plan._lengths:
        means = []
        for window in range(plan.windows):
            try:
                tokens = torch.tensor([source(length, window)], device=model.device)
            except ValueError:
                if window == 0:
                    raise
                break  # the text has no more
            means.append(text_losses(model, tokens).mean().item())
            tell(length)
        mean = sum(means) / len(means)
        reach = math.nan  # of a single window, no interval is known
        if len(means) > 1:
            reach = float(stats.sem(means) * stats.t.ppf(0.975, len(means) - 1))
        scores.append(Score(case, TEXT, length, None, mean, mean - reach, mean + reach, len(means)))
    return scores


def _prompts(
    tokenizer: PreTrainedTokenizerBase, plan: Plan
) -> dict[str, dict[Place, list[Prompt]]]:
    """Return what every policy is asked, by template, length and depth."""
    if not plan.prompts:
        return {}
    to_ask = plan._lengths, plan.depths, plan.prompts
    return {
        name: prompts_by_place(tokenizer, TEMPLATES[name], *to_ask, seed=plan.seed)
        for name in plan.templates
    }


def _retrieval(
    case: str,
    model: PreTrainedModel,
    prompts: Mapping[str, Mapping[Place, Sequence[Prompt]]],
    tell: Tell,
) -> list[Score]:
    scores = []
    for name, by_place in prompts.items():
        for cell in retrieval(model, by_place, tell=tell):
            share = share_of(cell.right, cell.prompts)
            scores.append(
                Score(case, f"{RETRIEVAL}{name}", cell.length, cell.depth, *share, cell.prompts)
            )
    return scores


def _harness(
    case: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, plan: Plan
) -> list[Score]:
    """Run tasks of lm_eval; those that make prompts of a length, at every length."""
    scores = []
    for task in plan.tasks:
        for length in plan._lengths if task.startswith(BY_LENGTH) else [None]:
            value, count = _harness_value(model, tokenizer, task, length, plan.limit)
            low = high = math.nan  # of what is no share, no interval is known
            if 0 <= value <= 1:
                _, low, high = share_of(round(value * count), count)
            scores.append(Score(case, task, length, None, value, low, high, count))
    return scores


def require_possible(plan: Plan, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a ValueError if prompts do not fit a length, or lm_eval has no such task."""
    for name in plan.templates if plan.prompts else ():
        try:
            make_prompt(tokenizer, TEMPLATES[name], min(plan._lengths), Random(0))
        except ValueError as error:
            raise ValueError(f"the prompts of {name!r} do not fit: {error}") from None
    if not plan.tasks:
        return
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise ValueError(f"tasks need {error.name}: pip install 'sharpmax[evaluate]'") from None
    known = set(TaskManager().all_tasks)
    for task in plan.tasks:
        if task not in known:
            raise ValueError(f"lm_eval has no task {task}")


def _harness_value(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: str,
    length: int | None,
    limit: int,
) -> tuple[float, int]:
    """Return a task's metric, and from how many prompts."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    settings: dict[str, Any] = {"tokenizer": tokenizer.name_or_path}
    if length is not None:
        settings["max_seq_lengths"] = [length]
    found = lm_eval.simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1),
        tasks=[task],
        limit=limit,
        metadata=settings,
        bootstrap_iters=0,
        log_samples=False,
    )
    metrics = {
        name.partition(",")[0]: value
        for name, value in found["results"][task].items()
        if isinstance(value, int | float) and "stderr" not in name
    }
    count = int(found["n-samples"][task]["effective"]) if task in found["n-samples"] else limit
    if length is not None and str(length) in metrics:
        return float(metrics[str(length)]), count
    known = [value for name, value in metrics.items() if not name.isdigit()]
    if not known:
        raise ValueError(f"lm_eval gives no number for {task}: name its tasks one by one")
    return float(known[0]), count
