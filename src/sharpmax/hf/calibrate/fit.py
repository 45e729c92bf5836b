"""Fitting β head by head by gradient, through a model whose weights stay as they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from sharpmax.hf.calibrate.curvature import squares, step_lengths
from sharpmax.hf.calibrate.entropies import text_entropies
from sharpmax.hf.calibrate.losses import (
    answer_logits,
    answer_losses,
    are_right,
    of_text,
    price,
    shortfall,
    text_states_and_answer_logits,
)
from sharpmax.hf.reader import Reader
from sharpmax.hf.sharpen import layers_and_heads, sharpen
from sharpmax.per_head import PerHead
from sharpmax.policies import ConstantRows, LogLinear
from sharpmax.tasks.key_value import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sharpmax.hf.calibrate.examples import Batch, Examples
    from sharpmax.hf.calibrate.processes import Processes
    from sharpmax.hf.calibrate.settings import Settings
    from sharpmax.policy import Policy

CHECKED_AT_ONCE = 8
"""Sequences that are looked at together on a GPU, where no gradient is kept."""
BAND = ("low", "high", "drift")
SINK = {
    "offset": "sink",
    "by_length": "sink_by_length",
    "below": "sink_below",
    "above": "sink_above",
}
"""Which number does to γ what another does to ln β."""
SLOPES = {"offset": "by_length", "sink": "sink_by_length"}
"""What changes with the length, and by how much."""
CHANGED = 0.02
"""A head is changed if its β, or its sink's power, leaves 1 or its γ 0 by more than about that."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Check:
    """How a policy does on what it was not fitted to.

    Attributes:
        retrieval: The share of answers that are right, every token of them.
        answer_loss: The mean loss of their tokens, in nats.
        shortfall: How much answers fall short in the mean, where none counts for very much.
        text_loss: The mean loss of the text's tokens, in nats.
        divergence: The mean divergence of the predictions on text from the original model's.
        text_cost: The loss of text over the original model's, as a share.
        own: The share of answers to the user's own questions that are right; None without any.
    """

    retrieval: float
    answer_loss: float
    shortfall: float
    text_loss: float
    divergence: float
    text_cost: float
    own: float | None = None

    def objective(self, tie: float) -> float:
        """Return what is made small: how much answers fall short, and what text pays."""
        growth = self.text_loss - self.text_loss / (1 + self.text_cost)
        return self.shortfall + tie * price(self.divergence, growth)


class Fitting:
    """The numbers of every head, and what makes them better step by step.

    Attributes:
        numbers: By the name of the setting of `LogLinear`, each of shape (layers, heads), in units
            of its own step.
        chosen: Which heads may differ from plain attention.
    """

    def __init__(
        self, model: PreTrainedModel, examples: Examples, settings: Settings, processes: Processes
    ) -> None:
        self.model, self.examples, self.settings = model, examples, settings
        self.processes = processes
        self.reader = Reader(model, settings.length)
        shape, device = layers_and_heads(model), model.device
        names = ["offset", "by_length", *(["below", "above"] if settings.entropy else [])]
        if settings.sink:
            names += [*[SINK[name] for name in names], "sink_log_power"]
        self.numbers = {name: torch.zeros(shape, device=device).requires_grad_() for name in names}
        self.chosen = torch.ones(shape, dtype=torch.bool, device=device)
        self.optimizer = torch.optim.Adam(self.numbers.values(), lr=settings.learning_rate)
        self._band: dict[str, Tensor] = {}
        if settings.entropy:
            heard = text_entropies(self.reader, examples.fitted_texts(), settings.sink)
            band = heard.band(settings.band)
            told = processes.first({name: value.float().cpu() for name, value in band.items()})
            self._band = {name: value.to(device) for name, value in told.items()}
        self._lengths = {name: torch.ones(shape, device=device) for name in names}
        self._prompts, self._texts = examples.checked_prompts(), examples.checked_texts()
        if not self.reader.can_branch:
            self._prompts = [[prompt] for prompts in self._prompts for prompt in prompts]
        self._original: list[Tensor] = []
        self._fit_at_once = math.inf if device.type == "cuda" else 1

    def weigh(self) -> None:
        """Let numbers that text hardly feels take longer steps than the others."""
        settings = self.settings
        numbers = {name: value.detach().requires_grad_() for name, value in self._masked().items()}
        numbers = {name: numbers[name] for name in self.numbers}
        policy = self._policy_in_fit(numbers | self._band)
        texts = self.examples.fitted_texts()
        with _frozen(self.model, settings.checkpointing), sharpen(self.model, policy):
            found = squares(self.reader, texts, numbers, settings.weighings, settings.seed)
        lengths = {name: value.cpu() for name, value in step_lengths(found).items()}
        told = self.processes.first(lengths)
        with torch.no_grad():
            for name, value in self.numbers.items():
                self._lengths[name] = told[name].to(value)
                value /= self._lengths[name]

    def numbers_of(self, policy: Policy) -> dict[str, Tensor]:
        """Return the numbers of a policy that was fitted before, by name.

        Its bands are not taken over: they are measured again, on the texts of this fit.

        Raises:
            ValueError: If it is not of the kind that is fitted here.
        """
        shape, base = tuple(self.chosen.shape), replace(self._base(), low=None, high=None)
        if not isinstance(policy, PerHead) or not isinstance(policy.base, LogLinear):
            raise ValueError(
                f"start must be a policy that calibrate has made, got {type(policy).__name__}"
            )
        if policy.shape != shape:
            raise ValueError(
                f"start must have numbers for the model's layers and heads, {shape}, "
                f"got {policy.shape}"
            )
        theirs = replace(policy.base, low=None, high=None)
        if theirs != base:
            ours, others = base.settings(), theirs.settings()
            told = [f"{n} {others[n]}, not {ours[n]}" for n in ours if others[n] != ours[n]]
            raise ValueError(f"start must be fitted as it goes on: it has {'; '.join(told)}")
        given = {
            name: torch.as_tensor(value).detach()
            for name, value in policy.by_head.items()
            if name not in BAND
        }
        for name, value in given.items():
            if name not in self.numbers and bool(value.any()):
                raise ValueError(f"start has numbers for {name}, which is not fitted here")
        return {name: given[name] for name in self.numbers if name in given}

    def start(self, numbers: dict[str, Tensor]) -> None:
        """Begin with these numbers, and not with plain attention, before they are weighed."""
        with torch.no_grad():
            for name, value in numbers.items():
                self.numbers[name].copy_(value)

    def policy(self) -> PerHead:
        """Return the policy as it is now, with plain numbers."""
        with torch.no_grad():
            numbers = {name: value.cpu().double().numpy() for name, value in self._masked().items()}
        plain = ~self.chosen.cpu().numpy()  # whose band does not matter
        rounded = {
            name: np.where(plain, 0.0, value).round(4).tolist() for name, value in numbers.items()
        }
        return PerHead(self._base(), rounded)

    def changes(self) -> Tensor:
        """Return the largest |ln β|, |ln power| or |γ| of every head, up to the fitted length."""
        numbers = {name: value.detach() for name, value in self._masked().items()}
        return changes(numbers, self.settings)

    def worth(self, batches: Sequence[Batch], tie: float) -> Tensor:
        """Return by how much what is done to each head lowers the loss, over all heads together.

        These are the integrated gradients of Sundararajan et al. (2017): the path is the straight
        line from plain attention, and each batch is read at another place of it. What a head does
        in the company of the others counts, and how much it is changed does not.
        """
        whole = {name: value.detach().clone() for name, value in self.numbers.items()}
        found = torch.zeros(self.chosen.shape, device=self.chosen.device)
        for place, batch in enumerate(batches):
            with torch.no_grad():
                for name, value in self.numbers.items():
                    value.copy_((place + 0.5) / len(batches) * whole[name])
            self._gradients(batch, tie)
            for name, value in self.numbers.items():
                assert value.grad is not None
                found -= value.grad * whole[name] / len(batches)
        with torch.no_grad():
            for name, value in self.numbers.items():
                value.copy_(whole[name])
        return found

    def keep_heads(self, count: int, worth: Tensor) -> None:
        """Leave only so many heads changed: those of the greatest worth."""
        worth = worth.masked_fill(~self.chosen, -math.inf)
        largest = worth.flatten().topk(min(count, worth.numel())).indices
        kept = torch.zeros_like(self.chosen.flatten())
        kept[largest] = True
        self.chosen &= kept.view_as(self.chosen)

    def scale(self, times: float) -> None:
        """Take every head so many times as far from plain attention."""
        with torch.no_grad():
            for value in self.numbers.values():
                value *= times

    def step(self, batch: Batch, tie: float, rate: float = 1.0) -> float:
        """Take one step of Adam, at a share of its learning rate.

        Returns:
            By which share the loss of the batch's texts has grown.
        """
        growth = self._gradients(batch, tie)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * self.settings.learning_rate
        self.optimizer.step()
        with torch.no_grad():
            for value in self.numbers.values():
                value *= self.chosen
        return growth

    def _gradients(self, batch: Batch, tie: float) -> float:
        """Leave the gradients of a batch's loss with the numbers, and return its texts' growth."""
        settings, processes = self.settings, self.processes
        # A model that must read a text for every question is asked but one.
        asked = settings.asked if self.reader.can_branch else 1
        groups = [prompts[:asked] for prompts in batch.prompts]
        every: list[list[Prompt] | list[int]] = [*groups, *batch.texts]
        mine = every[processes.rank :: processes.count]
        while True:
            try:
                of_texts = self._added_up(batch, mine, tie)
                break
            except torch.OutOfMemoryError:
                self._read_fewer_at_once(len(mine))
        for value in self.numbers.values():
            if value.grad is None:  # more processes than sequences
                value.grad = torch.zeros_like(value)
            processes.add_up(value.grad)
        processes.add_up(of_texts)
        growth: float = processes.first(float(of_texts[0] / of_texts[1]) - 1)
        return growth

    def _added_up(self, batch: Batch, mine: list[list[Prompt] | list[int]], tie: float) -> Tensor:
        """Add up the gradients of some of a batch's sequences, and return their texts' losses."""
        self.optimizer.zero_grad(set_to_none=False)
        of_texts = torch.zeros(2, device=self.chosen.device)
        with _frozen(self.model, self.settings.checkpointing):
            for part in parts(mine, self._at_once(len(mine))):
                prompts = cast("list[list[Prompt]]", [some for some in part if is_asked(some)])
                texts = cast("list[list[int]]", [some for some in part if not is_asked(some)])
                with torch.no_grad():
                    original = self.reader.states(texts) if texts else None
                with sharpen(self.model, self._policy_in_fit(self._masked())):
                    loss, losses_of_texts = self._loss(batch, prompts, texts, original, tie)
                    loss.backward()  # type: ignore[no-untyped-call]
                of_texts += losses_of_texts
        return of_texts

    def check(self) -> Check:
        """Look at prompts and texts that are not fitted to, under the policy as it is now."""
        with torch.no_grad():
            if not self._original:
                self._original = [self.reader.states([text]).cpu() for text in self._texts]
            with sharpen(self.model, self._policy_in_fit(self._masked())):
                return self._checked()

    def state(self) -> dict[str, Tensor]:
        """Return everything that the fitting goes on from, as tensors by name."""
        tensors = {f"numbers/{name}": value.detach() for name, value in self.numbers.items()}
        for name, value in self.numbers.items():
            for kind, moment in self.optimizer.state.get(value, {}).items():
                tensors[f"adam/{kind}/{name}"] = moment
        tensors |= {f"lengths/{name}": value for name, value in self._lengths.items()}
        tensors |= {f"band/{name}": value for name, value in self._band.items()}
        return tensors | {"chosen": self.chosen.to(torch.uint8)}

    def resume(self, tensors: dict[str, Tensor]) -> None:
        """Go on from a saved state."""
        with torch.no_grad():
            self.chosen = tensors["chosen"].to(self.chosen)
            self._band = {name: tensors[f"band/{name}"].to(old) for name, old in self._band.items()}
            for name, value in self.numbers.items():
                value.copy_(tensors[f"numbers/{name}"])
                self._lengths[name] = tensors[f"lengths/{name}"].to(value)
                moments = {
                    kind: tensors[f"adam/{kind}/{name}"].clone()
                    for kind in ("step", "exp_avg", "exp_avg_sq")
                    if f"adam/{kind}/{name}" in tensors
                }
                self.optimizer.state.pop(value, None)
                if moments:
                    device = value.device
                    self.optimizer.state[value] = {
                        kind: moment if kind == "step" else moment.to(device)
                        for kind, moment in moments.items()
                    }

    def _base(self) -> LogLinear:
        settings = self.settings
        edge = 0.0 if settings.entropy else None
        return LogLinear(
            settings.reference_length,
            most=settings.most,
            low=edge,
            high=edge,
            sink_apart=settings.sink,
        )

    def _policy_in_fit(self, numbers: dict[str, Tensor]) -> Policy:
        """Return the policy of some numbers, to which the rows' entropies are constants.

        What a head does to the entropies of those above it is left out of the gradient. How
        β and γ follow from the entropy is in it all the same.
        """
        policy = PerHead(self._base(), numbers)
        return ConstantRows(policy) if self.settings.entropy else policy

    def _masked(self) -> dict[str, Tensor]:
        """Return the settings of every head; those that are not chosen have a β of 1."""
        numbers = {
            name: value * self._lengths[name] * self.chosen for name, value in self.numbers.items()
        }
        return numbers | self._band

    def _at_once(self, sequences: int) -> int:
        """Return how many of so many sequences go through the model together."""
        if self.settings.at_once is not None:
            return self.settings.at_once
        return max(1, int(min(sequences, self._fit_at_once)))

    def _read_fewer_at_once(self, sequences: int) -> None:
        """Halve how many of so many sequences go through the model together from now on.

        Raises:
            ValueError: If that is set, or one alone is too many.
        """
        size = min(sequences, self._at_once(sequences))
        if self.settings.at_once is not None or size == 1:
            less = "set checkpointing" if size == 1 else "set a smaller at_once, or none"
            raise ValueError(
                f"at_once must leave a step room in memory, and {size} of its sequences have none: "
                f"{less}"
            ) from None
        self._fit_at_once = size // 2
        torch.cuda.empty_cache()

    def _loss(
        self,
        batch: Batch,
        groups: list[list[Prompt]],
        texts: list[list[int]],
        original: Tensor | None,
        tie: float,
    ) -> tuple[Tensor, Tensor]:
        """Return this part's share of a step's loss, and of its texts', now and before."""
        losses, states, answers = [], None, None
        if groups and original is not None:
            states, answers = text_states_and_answer_logits(self.reader, texts, groups)
        elif groups:
            answers = answer_logits(self.reader, groups)
        else:
            states = self.reader.states(texts)
        if answers is not None:
            short = shortfall(answer_losses(answers, [p for prompts in groups for p in prompts]))
            means = [some.mean() for some in torch.split(short, [len(some) for some in groups])]
            losses.append(torch.stack(means).sum() / len(batch.prompts))
        of_texts = torch.zeros(2, device=self.chosen.device)
        if states is not None and original is not None:
            found = of_text(self.reader, states, original, texts)
            share = len(texts) / len(batch.texts)
            losses.append(tie * share * found.price())
            of_texts = share * torch.stack([found.loss, found.original_loss]).detach()
        return torch.stack(losses).sum(), of_texts

    def _checked(self) -> Check:
        at_once = CHECKED_AT_ONCE if self.model.device.type == "cuda" else 1
        right: list[bool] = []
        losses: list[Tensor] = []
        short: list[Tensor] = []
        for groups in parts(self._prompts, at_once):
            prompts = [prompt for some in groups for prompt in some]
            logits = answer_logits(self.reader, groups)
            losses.append(answer_losses(logits, prompts))
            short.append(shortfall(losses[-1]))
            right += are_right(logits, prompts)
        of_texts = []
        for text, original in zip(self._texts, self._original, strict=True):
            states = self.reader.states([text])
            found = of_text(self.reader, states, original.to(states), [text])
            of_texts.append(torch.stack(found).tolist())
        divergence, loss, original_loss = map(_mean, zip(*of_texts, strict=True))
        own = self.examples.own_checked
        return Check(
            retrieval=_mean(right),
            answer_loss=float(torch.cat(losses).mean()),
            shortfall=float(torch.cat(short).mean()),
            text_loss=loss,
            divergence=divergence,
            text_cost=loss / original_loss - 1,
            own=_mean(right[-own:]) if own else None,
        )


def changes(numbers: dict[str, Tensor], settings: Settings) -> Tensor:
    """Return every head's largest |ln β|, |ln power| or |γ|, where short or at the full length.

    What depends on the entropy is counted as 1 nat out of the band.
    """
    growth = math.log(max(1.0, settings.length / settings.reference_length))
    found = [value for name, value in numbers.items() if name not in (*BAND, *SLOPES.values())]
    for short, slope in SLOPES.items():
        if slope in numbers:
            found.append(numbers[short] + numbers[slope] * growth)
    return torch.stack(found).abs().amax(0)


def is_asked(some: list[Prompt] | list[int]) -> bool:
    """Tell whether these are prompts, and not the tokens of a text."""
    return isinstance(some[0], Prompt)


def parts(items: Sequence[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items, so many at a time."""
    for start in range(0, len(items), size):
        yield list(items[start : start + size])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@contextmanager
def _frozen(model: PreTrainedModel, checkpointing: bool) -> Iterator[None]:
    """Let gradients flow through the model, but to none of its weights.

    Checkpoints are made in training alone, so the layers that make them are told that they are in
    it, and nothing within them is: nothing is dropped.
    """
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    before = model.is_gradient_checkpointing
    try:
        for parameter in wanted:
            parameter.requires_grad_(False)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            for layer in layers:
                layer.training = True
        yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)
        if checkpointing:
            for layer in layers:
                layer.training = model.training
            if not before:
                model.gradient_checkpointing_disable()  # type: ignore[no-untyped-call]
