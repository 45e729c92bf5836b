"""The whole study: train, fit, evaluate, compare; each stage keeps its result in the run's folder.

A stage whose result is there is not done again, and the two long ones, training and evaluation,
keep where they are at least every `SAVE_EVERY` seconds: a run that was stopped, in whatever way,
goes on from there and ends as if it had not been.
"""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import stats

import sharpmax
from sharpmax.per_head import PerHead
from sharpmax.policies import HELD, PAPER, EntropyCap, Fixed, LogLength
from sharpmax.policy import Policy
from sharpmax.tasks.max_retrieval import fit
from sharpmax.tasks.max_retrieval.evaluate import (
    ARGMAX,
    MEASURES,
    blocks,
    drawn_block,
    evaluate_block,
    most_attended,
)
from sharpmax.tasks.max_retrieval.folder import RunFolder
from sharpmax.tasks.max_retrieval.networks import initial_weights
from sharpmax.tasks.max_retrieval.train import Training

if TYPE_CHECKING:
    from sharpmax.tasks.max_retrieval.data import Sets
    from sharpmax.tasks.max_retrieval.networks import Weights
    from sharpmax.tasks.max_retrieval.settings import Settings

SAVE_EVERY = 20.0
"""Seconds."""
CAP = 0.5
"""Nats: rows of less are sharp, as in the paper."""
STEPS_AT_ONCE = 10
"""Between two looks at the clock."""
FIT_SETS, FIT_ITEMS = 128, 2**21
"""For each size and seed, to fit the policies to; other sets than those of the evaluation."""
FITTED = {"fitted": fit.fit_polynomial, "monotone": fit.fit_monotone}
NOTHING_SUMMED: dict[str, Any] = {"counts": [], "block": 0, "sums": {}}
SHOWN_SETS = 32
"""Whose attention is drawn."""
SHOWN_POLICIES = ("softmax", "paper", "entropy cap")
FOR_EVALUATION, FOR_FIT, FOR_FIGURES = range(3)

Tell = Callable[[str, int, int], None]
"""Told the stage, how much of it is done, and how much there is."""


@dataclasses.dataclass(frozen=True)
class Study:
    """A study, and where it is done.

    Attributes:
        settings: What is studied.
        training_policy: What sharpens the logits in training.
        given: The policies of the settings' files, by name.
        folder: Where everything is kept.
        device: Where it is computed.
        tell: Told of the progress.
        save_every: The most seconds between two checkpoints.
    """

    settings: Settings
    training_policy: Policy
    given: dict[str, Policy]
    folder: RunFolder
    device: torch.device
    tell: Tell
    save_every: float

    @classmethod
    def open(
        cls,
        path: Path,
        settings: Settings,
        device: torch.device,
        tell: Tell = lambda *_: None,
        save_every: float = SAVE_EVERY,
    ) -> Study:
        """Return the study of a folder, a new one or the same as before.

        Raises:
            ValueError: If a policy's file does not fit, or the folder holds something else. Then
                nothing was changed.
        """
        training_policy = policy_named(settings.training_policy, settings)
        given = given_policies(settings)
        folder = RunFolder(path, settings, device.type)
        described = {name: policy.to_dict() for name, policy in given.items()}
        described["in training"] = training_policy.to_dict()
        if (before := folder.read_json("policies.json")) is None:
            folder.write_json("policies.json", described)
        elif before != json.loads(json.dumps(described)):
            raise ValueError(
                f"a policy's file has changed since {path} was begun: name another with --out"
            )
        return cls(settings, training_policy, given, folder, device, tell, save_every)

    def run(self) -> None:
        """Do every stage that is not done yet."""
        if not self.folder.has("versions.json"):
            self.folder.write_json("versions.json", versions(self.device))
        weights = self.trained()
        policies = usual_policies(self.settings) | self.fitted(weights) | self.given
        self.evaluate(weights, policies)
        self.show(weights, {name: policies[name] for name in SHOWN_POLICIES})

    def trained(self) -> Weights:
        """Return the trained weights, trained now or before."""
        if not self.folder.has("weights.safetensors"):
            self._train()
        weights = self.folder.read_tensors("weights.safetensors")
        needed = initial_weights([0], ssmax=self.settings.ssmax)
        if weights is None or weights.keys() != needed.keys():
            raise self.folder.set_aside("weights.safetensors", "it lacks something")
        return {name: weight.to(self.device) for name, weight in weights.items()}

    def _train(self) -> None:
        training = Training(self.settings, self.training_policy, self.device)
        if (state := self.folder.read_tensors("checkpoint.safetensors")) is not None:
            try:
                training.resume(state)
            except (KeyError, RuntimeError, ValueError) as error:
                raise self.folder.set_aside("checkpoint.safetensors", str(error)) from None
        saved = time.monotonic()
        while training.step < self.settings.steps:
            self.tell("train", training.step, self.settings.steps)
            training.run(training.step + STEPS_AT_ONCE)
            if time.monotonic() - saved >= self.save_every:
                self.folder.write_tensors("checkpoint.safetensors", training.state())
                saved = time.monotonic()
        self.tell("train", training.step, self.settings.steps)
        record = [
            {"step": step, "seed": seed, "loss": loss, "accuracy": accuracy}
            for step, seed, loss, accuracy in training.record
        ]
        self.folder.write_table("training.csv", record)
        self.folder.write_tensors("weights.safetensors", training.result())
        self.folder.remove("checkpoint.safetensors")

    def fitted(self, weights: Weights) -> dict[str, Policy]:
        """Return the policies fitted to the networks; none where they err too rarely."""
        if not self.folder.has("fit.csv"):
            self._fit(weights)
        return {
            name: Policy.load(self.folder.path / f"{name}.json")
            for name in FITTED
            if self.folder.has(f"{name}.json")
        }

    def _fit(self, weights: Weights) -> None:
        seeds = self.settings.seeds
        sizes = [size for size in self.settings.sizes if size > self.settings.most_items]
        points: list[tuple[int, float, float]] = []
        for done, size in enumerate(sizes):
            self.tell("fit", done, len(sizes))
            count = min(FIT_SETS, self.settings.sets, max(1, FIT_ITEMS // size))
            for block, sets in enumerate(blocks(size, count, seeds, self.device)):
                drawn = self._drawn(size, block, (seeds, sets), FOR_FIT)
                points += [(size, *point) for point in fit.best_betas(weights, drawn)]
        self.tell("fit", len(sizes), len(sizes))
        pairs = [(entropy, beta) for _, entropy, beta in points]
        policies: dict[str, Policy] = {}
        if len(pairs) >= fit.FEWEST:
            policies = {name: make(pairs) for name, make in FITTED.items()}
        for name, policy in policies.items():
            self.folder.write_json(f"{name}.json", policy.to_dict())
        largest = math.log(max(self.settings.sizes))
        entropies = [float(h) for h in np.linspace(0, largest, 200)]
        curves = [
            {"policy": name, "entropy": h, "beta": beta}
            for name, policy in ({"published": PAPER} | policies).items()
            for h, beta in zip(entropies, fit.curve(policy, entropies), strict=True)
        ]
        self.folder.write_table("curves.csv", curves)
        rows = [{"size": size, "entropy": h, "beta": beta} for size, h, beta in points]
        self.folder.write_table("fit.csv", rows)

    def evaluate(self, weights: Weights, policies: dict[str, Policy]) -> None:
        """Measure every policy at every size, and compare it with plain softmax."""
        if self.folder.has("comparison.csv"):
            return
        settings = self.settings
        state = self._evaluation_so_far()
        done = {row["size"] for row in state["rows"]}
        total = settings.sets * len(settings.sizes)
        saved = time.monotonic()
        for size in settings.sizes:
            if size in done:
                continue
            counts = blocks(size, settings.sets, settings.seeds, self.device)
            if state["counts"] != counts:
                state |= {"counts": counts, "block": 0, "sums": {}}
            while state["block"] < len(counts):
                at = len(done) * settings.sets + sum(counts[: state["block"]])
                self.tell("evaluate", at, total)
                shape = (settings.seeds, counts[state["block"]])
                drawn = self._drawn(size, state["block"], shape, FOR_EVALUATION)
                for name, sums in evaluate_block(weights, drawn, policies).items():
                    before = np.array(state["sums"].get(name, 0.0))
                    state["sums"][name] = (before + sums.numpy()).tolist()
                state["block"] += 1
                if time.monotonic() - saved >= self.save_every:
                    self.folder.write_json("evaluation.json", state)
                    saved = time.monotonic()
            state["rows"] += self._rows(size, state["sums"])
            state |= NOTHING_SUMMED
            done.add(size)
        self.tell("evaluate", total, total)
        self.folder.write_table("evaluation.csv", state["rows"])
        self.folder.write_table("comparison.csv", compared(state["rows"]))
        self.folder.remove("evaluation.json")

    def _evaluation_so_far(self) -> dict[str, Any]:
        """Return the finished sizes' rows, and of the one under way the blocks and their sums."""
        fresh = {"rows": []} | NOTHING_SUMMED
        state = self.folder.read_json("evaluation.json")
        if state is None:
            return fresh
        if not isinstance(state, dict) or state.keys() != fresh.keys():
            raise self.folder.set_aside("evaluation.json", "it lacks something")
        return state

    def _rows(self, size: int, sums: dict[str, Any]) -> list[dict[str, Any]]:
        """Return one row a policy and seed of the means over all sets of a size."""
        return [
            {"size": size, "seed": self.settings.first_seed + seed, "policy": name}
            | {
                measure: values[seed] / self.settings.sets
                for measure, values in zip(MEASURES, measures, strict=True)
            }
            for name, measures in sums.items()
            for seed in range(self.settings.seeds)
        ]

    def show(self, weights: Weights, policies: dict[str, Policy]) -> None:
        """Keep the first network's attention to the items of the largest keys (Figures 2 and 5)."""
        if self.folder.has("attention.csv"):
            return
        first = {name: weight[:1] for name, weight in weights.items()}
        rows: list[dict[str, Any]] = []
        for done, size in enumerate(self.settings.sizes):
            self.tell("draw", done, len(self.settings.sizes))
            offset = 0
            for block, sets in enumerate(blocks(size, SHOWN_SETS, 1, self.device)):
                drawn = self._drawn(size, block, (1, sets), FOR_FIGURES)
                for row in most_attended(first, drawn, policies):
                    rows.append({**row, "size": size, "set": row["set"] + offset})
                offset += sets
        self.tell("draw", len(self.settings.sizes), len(self.settings.sizes))
        self.folder.write_table("attention.csv", rows)

    def _drawn(self, size: int, block: int, shape: tuple[int, int], purpose: int) -> Sets:
        return drawn_block(self.settings.first_seed, size, block, shape, self.device, purpose)


def usual_policies(settings: Settings) -> dict[str, Policy]:
    """Return the policies that every study tests.

    `LogLength` keeps ln n/ln n₀, with n₀ the largest size trained on.
    """
    most = settings.most_items
    return {
        "softmax": Fixed(1.0),
        "paper": PAPER,
        "held": HELD,
        "log length": LogLength(most, 1 / math.log(most)),
        "entropy cap": EntropyCap(CAP),
    }


def policy_named(name: str, settings: Settings) -> Policy:
    """Return a usual policy by its name, or the one that a file holds."""
    known = usual_policies(settings)
    if name in known:
        return known[name]
    if not Path(name).is_file():
        raise ValueError(
            f"there is no policy file {name}, nor a policy of that name: {', '.join(known)}"
        )
    policy = Policy.load(name)
    if isinstance(policy, PerHead):
        raise ValueError(f"{name} has settings for several heads, and these networks have one")
    if policy.sets_sink_apart:
        raise ValueError(f"{name} sets the first key apart, and a set of items has no first")
    return policy


def given_policies(settings: Settings) -> dict[str, Policy]:
    """Return the policies of the settings' files by the files' names, none of them a usual one."""
    usual = {*usual_policies(settings), *FITTED, ARGMAX}
    policies: dict[str, Policy] = {}
    for name in settings.policies:
        stem = Path(name).stem
        taken = stem in usual or stem in policies
        policies[name if taken else stem] = policy_named(name, settings)
    return policies


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each policy's mean accuracy at each size, with its 95 % interval over the seeds.

    The difference from plain softmax comes with the p-value of a paired t-test.
    """
    accuracies: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        accuracies.setdefault((row["policy"], row["size"]), []).append(row["accuracy"])
    return [
        {"size": size, "policy": policy, **_interval(values)}
        | _difference(values, accuracies["softmax", size])
        for (policy, size), values in accuracies.items()
    ]


def _interval(values: list[float]) -> dict[str, float]:
    mean = float(np.mean(values))
    if len(values) == 1:
        return {"accuracy": mean, "low": mean, "high": mean}
    reach = float(stats.sem(values) * stats.t.ppf(0.975, len(values) - 1))
    return {"accuracy": mean, "low": max(mean - reach, 0.0), "high": min(mean + reach, 1.0)}


def _difference(values: list[float], plain: list[float]) -> dict[str, float | None]:
    differences = np.subtract(values, plain)
    p_value = None
    if len(values) > 1 and np.ptp(differences) > 1e-9:  # the same in all seeds tells nothing
        p_value = float(stats.ttest_rel(values, plain).pvalue)
    return {"difference": float(differences.mean()), "p_value": p_value}


def versions(device: torch.device) -> dict[str, str]:
    """Return what a run was done with."""
    is_gpu = device.type == "cuda"
    return {
        "sharpmax": sharpmax.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if is_gpu else platform.machine(),
        "begun": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
