"""Everything that can be set of a study, its presets, and their trip through TOML."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharpmax.tasks.max_retrieval.published import SIZES

SCHEDULES = ("constant", "cosine")
MOST = 2**31
"""More than any setting has use for."""


def _require(name: str, value: float, least: float) -> None:
    if not least <= value < MOST:
        raise ValueError(f"{name} must be at least {least} and below {MOST:,}, got {value}")


def _require_kind(name: str, value: Any, like: Any) -> None:
    """Raise a ValueError unless the value is of the kind that the setting has now."""
    if isinstance(like, tuple):
        inner: type = str if name == "policies" else int
        if not isinstance(value, list | tuple) or not all(type(item) is inner for item in value):
            raise ValueError(f"{name} must be a list of {inner.__name__}s, got {value!r}")
        return
    kinds = (float, int) if isinstance(like, float) else (type(like),)
    if type(value) not in kinds:
        raise ValueError(f"{name} must be of type {kinds[0].__name__}, got {value!r}")


@dataclass(frozen=True)
class Settings:
    """What a study trains, and on what it is tested; the defaults are the paper's.

    Attributes:
        seeds: How many networks are trained, side by side.
        first_seed: The seed of the first; the others follow.
        steps: Of Adam.
        batch: Sets in a step, all of one size.
        least_items: The smallest size trained on.
        most_items: The largest.
        learning_rate: Adam's.
        schedule: "constant", or "cosine" from the learning rate down to 0.
        l2: What half the sum of the squared weights is multiplied by in the loss. The paper says
            0.001 and not of what; this value gives its results, and 0.001 blurs sooner.
        clip: The largest norm of a network's gradient, which is scaled down to it; 0 for none.
        gumbel: How strong the Gumbel noise on the logits in training is; 0 for none.
        training_policy: The policy that sharpens the logits in training: a name or a file.
        ssmax: Whether the networks learn a factor s·ln(n) of their logits (SSMax).
        average: The decay of a running mean of the weights, which is what is tested; 0 for none.
        sizes: Tested on.
        sets: Tested on, for each size and seed.
        policies: Files of policies to test beside the usual ones.
    """

    seeds: int = 10
    first_seed: int = 0
    steps: int = 100_000
    batch: int = 128
    least_items: int = 5
    most_items: int = 16
    learning_rate: float = 1e-3
    schedule: str = "constant"
    l2: float = 4e-4
    clip: float = 0.0
    gumbel: float = 0.0
    training_policy: str = "softmax"
    ssmax: bool = False
    average: float = 0.0
    sizes: tuple[int, ...] = SIZES
    sets: int = 1024
    policies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("seeds", "steps", "batch", "sets"):
            _require(name, getattr(self, name), least=1)
        for name in ("least_items", "most_items"):
            _require(name, getattr(self, name), least=2)
        if self.least_items > self.most_items:
            raise ValueError(
                f"least_items must be at most most_items, {self.most_items}, got {self.least_items}"
            )
        if not self.sizes:
            raise ValueError("sizes must name at least one size")
        for size in self.sizes:
            _require("sizes", size, least=2)
        object.__setattr__(self, "sizes", tuple(sorted(set(self.sizes))))
        _require("first_seed", self.first_seed, least=0)
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {SCHEDULES}, got {self.schedule!r}")
        for name in ("l2", "clip", "gumbel"):
            _require(name, getattr(self, name), least=0)
        if not 0 < self.learning_rate < 1:
            raise ValueError(f"learning_rate must be between 0 and 1, got {self.learning_rate}")
        if not 0 <= self.average < 1:
            raise ValueError(f"average must be at least 0 and below 1, got {self.average}")

    def to_toml(self) -> str:
        """Return the settings as a TOML document; a setting's JSON is its TOML too."""
        return "".join(
            f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
            for name, value in dataclasses.asdict(self).items()
        )

    def digest(self) -> str:
        """Return a few letters that tell these settings from others."""
        return hashlib.sha256(self.to_toml().encode()).hexdigest()[:8]


PRESETS = {
    "quick": Settings(
        seeds=3,
        steps=2_000,
        learning_rate=3e-3,
        schedule="cosine",
        sizes=SIZES[:9],
        sets=256,
    ),
    "paper": Settings(),
    "best": Settings(
        steps=30_000,
        batch=512,
        least_items=16,
        learning_rate=5e-3,
        schedule="cosine",
        l2=0.0,
        clip=1.0,
        gumbel=1.0,
    ),
}


def settings_from(preset: str, given: Mapping[str, Any]) -> Settings:
    """Return a preset's settings with some others in their place.

    Raises:
        ValueError: If there is no such preset, or no such setting, or it does not fit.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    for name, value in given.items():
        if name not in fields:
            raise ValueError(f"there is no setting {name}; there are {', '.join(fields)}")
        _require_kind(name, value, getattr(PRESETS[preset], name))
    changed: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }
    for name, value in changed.items():
        if isinstance(getattr(PRESETS[preset], name), float):
            changed[name] = float(value)
    return dataclasses.replace(PRESETS[preset], **changed)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the settings that a TOML file holds, or say what is wrong with the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a TOML file of settings: {error}") from None
