"""A whole calibration: text may lose less and less, then fewer heads; and which of all to keep.

Everything that was found lies in a folder, and a run that was stopped goes on from there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sharpmax.hf.calibrate.examples import Examples, Question
from sharpmax.hf.calibrate.fit import CHANGED, Check, Fitting
from sharpmax.hf.calibrate.folder import Folder
from sharpmax.hf.calibrate.points import Calibration, Point, most_found
from sharpmax.hf.calibrate.processes import Processes
from sharpmax.hf.calibrate.settings import Settings
from sharpmax.hf.calibrate.tie import START, Tie
from sharpmax.hf.sharpen import context_of, is_sharpened, require_interface
from sharpmax.per_head import PerHead
from sharpmax.policies import LogLinear
from sharpmax.policy import Policy, require_policy

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SLOWEST = 0.05
"""The share of the learning rate that a stage ends with."""
LATER = 0.5
"""The share of it that stages after the first begin with: they begin where one has ended."""
WARM_UP = 10
"""Steps until the learning rate is taken whole: Adam's first know nothing of the noise yet."""
JUDGED_BY = 9
"""Batches that tell which heads help most: each length that steps have, three times."""
FURTHER, LEAP, MOST_LEAPS = "further", 0.05, 20
"""The policy that lies further along the way of the best, how much at a time, how often."""
Tell = Callable[[str, int], None]
"""Told what is done, and how many steps are done with, those that were not needed among them."""


def calibrate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: Settings | None = None,
    *,
    text: str | Sequence[str] | None = None,
    questions: Sequence[Question] = (),
    start: Policy | None = None,
    folder: str | Path | None = None,
    name: str = "model",
    tell: Tell = lambda _, __: None,
) -> Calibration:
    """Fit a policy by head that makes a model find things, its weights untouched.

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer.
        settings: What to fit, to what, and for how long.
        text: On which the model's predictions are to stay as good as they are, or several; English
            prose if None.
        questions: Of the user's own, to fit to as well.
        start: A policy that was calibrated before, to go on from; plain attention if None.
        folder: Where to keep everything, and to go on from if it was begun there.
        name: Of the model, for the policy's file.
        tell: Told after every step.

    Raises:
        ValueError: If the model, the text, the folder or the policy to go on from does not fit.
    """
    require_interface(model)
    if start is not None:
        require_policy(start)
    settings = Settings() if settings is None else settings
    require_room(model, settings)
    if is_sharpened(model):
        raise ValueError("model must have its own attention: it is sharpened, undo that first")
    processes = Processes.here()
    examples = Examples(tokenizer, settings, text, questions)
    kept = Folder(folder, model, name, examples, processes, start)
    fitting = Fitting(model, examples, settings, processes)
    numbers = {} if start is None else fitting.numbers_of(start)
    return Study(fitting, settings, kept, tell, numbers).run()


def require_room(model: PreTrainedModel, settings: Settings) -> None:
    """Raise a ValueError if a model cannot read what it would be fitted to."""
    if settings.length > context_of(model):
        raise ValueError(
            f"length must be within the model's context of {context_of(model):,} tokens, "
            f"got {settings.length:,}"
        )


@dataclass(frozen=True)
class HeadChange:
    """What a policy does to one head.

    Attributes:
        layer: Of the model, from 0.
        head: Of the layer, from 0.
        short: ln β at the reference length and below it.
        long: ln β at the longest length that was fitted to.
        below: What ln β gains for each nat of entropy below the head's band.
        above: The same above it.
        sink_short: γ, what is added to the log-odds of the sink, at the reference length and below.
        sink_long: The same at the longest length.
        sink_below: What γ gains for each nat of entropy below the head's band.
        sink_above: The same above it.
        sink_log_power: The logarithm of the power that the sink's odds are raised to.
    """

    layer: int
    head: int
    short: float
    long: float
    below: float
    above: float
    sink_short: float
    sink_long: float
    sink_below: float
    sink_above: float
    sink_log_power: float


def head_changes(policy: Policy, length: int) -> list[HeadChange]:
    """Return what a calibrated policy does to every head, up to a length.

    Raises:
        TypeError: If it is not a policy that `calibrate` has made.
    """
    if not isinstance(policy, PerHead) or not isinstance(policy.base, LogLinear):
        raise TypeError(f"policy must be one that calibrate has made, got {type(policy).__name__}")
    layers, heads = policy.shape
    growth = math.log(max(1.0, length / float(policy.base.reference_length)))
    most = float(policy.base.most)

    def change(layer: int, head: int) -> HeadChange:
        def of(name: str) -> float:
            return float(policy.by_head[name][layer][head]) if name in policy.by_head else 0.0

        def within(limit: float, value: float) -> float:
            return max(-limit, min(limit, value))

        return HeadChange(
            layer,
            head,
            short=within(math.log(most), of("offset")),
            long=within(math.log(most), of("offset") + growth * of("by_length")),
            below=of("below"),
            above=of("above"),
            sink_short=within(most, of("sink")),
            sink_long=within(most, of("sink") + growth * of("sink_by_length")),
            sink_below=of("sink_below"),
            sink_above=of("sink_above"),
            sink_log_power=within(math.log(most), of("sink_log_power")),
        )

    return [change(layer, head) for layer in range(layers) for head in range(heads)]


def total_steps(settings: Settings) -> int:
    """Return how many steps a calibration takes at most."""
    return settings.steps * (len(settings.costs) + 1) + _again(settings) * len(settings.heads)


def _again(settings: Settings) -> int:
    """Return how many steps fewer heads are fitted again for: half of those of a cost."""
    return max(1, settings.steps // 2)


class Study:
    """The stages one after another, each from where the last was best."""

    def __init__(
        self,
        fitting: Fitting,
        settings: Settings,
        folder: Folder,
        tell: Tell,
        numbers: dict[str, Tensor],
    ) -> None:
        self.fitting, self.settings, self.folder, self.tell = fitting, settings, folder, tell
        self.plain = fitting.processes.first(fitting.check())
        self.points: list[Point] = []
        self.policies: dict[str, Policy] = {}
        self.states: dict[str, dict[str, Tensor]] = {}
        self.step = 0
        self.tie = START
        folder.resume(self)
        if not self.points:
            fitting.start(numbers)
            fitting.weigh()

    def run(self) -> Calibration:
        """Go through all stages that are not done with yet."""
        settings = self.settings
        stages = len(settings.costs)
        for number, cost in enumerate(settings.costs):
            name, is_first = f"cost {100 * cost:g}%", number == 0
            self._stage(name, cost, settings.steps * (2 if is_first else 1), is_first)
        if len(self.points) == stages:
            self._go_further(self.best(self.points) or self.points[-1])
        whole = self.points[: stages + (FURTHER in self.policies)]
        start = self.best(whole) or self.points[stages - 1]
        for count in settings.heads:
            name = f"{count} heads"
            if count >= self.fitting.chosen.numel():  # the model has no more
                self.tell(name, _again(settings))
                continue
            if name not in self.policies:
                self.tell(name, 0)
                self.fitting.resume(self.states[start.name])
                self.fitting.keep_heads(count, self._worth())
            self._stage(name, start.allowed, _again(settings))
            start = dataclasses.replace(start, name=name)
        found = Calibration(self.plain, self.points, self.best(self.points), self.policies)
        self.folder.finish(found)
        return found

    def best(self, points: list[Point]) -> Point | None:
        """Return the point that retrieves most within the cost, if it retrieves more than plain."""
        within = [
            point
            for point in points
            if point.text_cost <= self.settings.max_text_loss
            and point.retrieval > self.plain.retrieval
        ]
        return most_found(within) if within else None

    def _worth(self) -> Tensor:
        """Return by how much every head helps, on the batches that the next steps begin with."""
        batches = [self.fitting.examples.batch(self.step + i) for i in range(JUDGED_BY)]
        return self.fitting.worth(batches, self.tie)

    def _stage(self, name: str, allowed: float, steps: int, is_first: bool = False) -> None:
        """Fit for some steps, and keep the best of the looks at what is not fitted to.

        Two looks are compared by how strongly text is tied at the second.
        """
        before = self.step
        if name in self.policies:  # done before the run was stopped
            self.fitting.resume(self.states[name])
            self.tell(name, steps)
            return
        best: tuple[Check, dict[str, Tensor], int] | None = None
        disappointments = 0
        tie = Tie(allowed, self.tie)
        with ThreadPoolExecutor(1) as ahead:
            batch = ahead.submit(self.fitting.examples.batch, self.step)
            while self.step < before + steps and disappointments < self.settings.patience:
                following = ahead.submit(self.fitting.examples.batch, self.step + 1)
                share = rate((self.step - before) / steps) * min(1.0, (self.step + 1) / WARM_UP)
                share *= 1.0 if is_first else LATER
                sequences, batch = batch.result(), following
                growth = self.fitting.step(sequences, tie.value, share)
                if len(sequences.texts[0]) == self.settings.length:  # shorter ones pay less
                    tie.heed(growth)
                self.step += 1
                self.tell(name, 1)
                if (self.step - before) % self.settings.check_every and self.step < before + steps:
                    continue
                check = self.fitting.processes.first(self.fitting.check())
                if best is None or check.objective(tie.level) < best[0].objective(tie.level):
                    best, disappointments = (check, self._state(), self.step), 0
                else:
                    disappointments += 1
        self.tell(name, before + steps - self.step)
        assert best is not None
        check, state, found_at = best
        self.tie = tie.level
        self._keep(name, allowed, found_at, check, state)

    def _go_further(self, point: Point) -> None:
        """Go on along the straight way from plain attention, as far as text may pay for it.

        Steps end short of where they lead, and what the way goes on to need not be fitted.
        """
        found, least = None, point.shortfall
        for leaps in range(1, MOST_LEAPS + 1):
            self.tell(FURTHER, 0)
            self.fitting.resume(self.states[point.name])
            self.fitting.scale(1 + leaps * LEAP)
            check = self.fitting.processes.first(self.fitting.check())
            if check.text_cost > self.settings.max_text_loss or check.shortfall >= least:
                break
            found, least = (check, self._state()), check.shortfall
        if found is not None:
            self._keep(FURTHER, self.settings.max_text_loss, point.steps, *found)

    def _keep(
        self, name: str, allowed: float, steps: int, check: Check, state: dict[str, Tensor]
    ) -> None:
        """Keep a policy along the way, and begin from there."""
        self.fitting.resume(state)
        heads = int((self.fitting.changes() > CHANGED).sum())
        self.points.append(Point(name, allowed, heads, steps, **asdict(check)))
        self.policies[name], self.states[name] = self.fitting.policy(), state
        self.folder.keep(self)

    def _state(self) -> dict[str, Tensor]:
        return {name: tensor.cpu().clone() for name, tensor in self.fitting.state().items()}


def rate(done: float) -> float:
    """Return the share of the learning rate at a share of a stage's steps: a cosine."""
    return SLOWEST + (1 - SLOWEST) * (1 + math.cos(math.pi * done)) / 2
