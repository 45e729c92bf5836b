"""The settings of a calibration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from sharpmax.tasks.key_value import HELD_OUT, TEMPLATES

CHECKED = ("phone", "pet", "record", "letter")
"""Templates that nothing is fitted to, but that tell when to stop."""
TIMES = (2.0, 0.8, 0.4)
"""What the loss on text may grow by while fitting, over what the policy that is kept may cost."""
LEAST = {
    "steps": 1,
    "prompts": 1,
    "asked": 1,
    "texts": 1,
    "weighings": 1,
    "check_every": 1,
    "patience": 1,
    "check_prompts": 1,
    "check_texts": 2,
    "shortest": 64,
    "reference_length": 1,
}
KINDS = {"costs": float, "heads": int, "templates": str, "checked": str, "at_once": int}
"""Those that a default does not tell."""


@dataclass(frozen=True)
class Settings:
    """What to fit, to what, and for how long.

    Attributes:
        length: Of the longest prompts and texts to fit to, in tokens.
        shortest: Of the shortest prompts.
        reference_length: Up to which β does not change with the length.
        costs: How much the loss on the text that is fitted to may grow at the full length, as
            shares, one after another. A large one finds what helps, and smaller ones take away of
            it what text must pay for. By default 2, 0.8 and 0.4 times `max_text_loss`.
        steps: At each of them, at most, and twice as many at the first.
        heads: After that, how many heads may stay changed, fewer and fewer, each for half as many
            steps.
        sink: Whether a row's first key, its sink, stands apart, and what becomes of its odds is
            fitted too. Attention then reads its keys twice.
        entropy: Whether that and β depend on the row's entropy too, where it leaves the band that a
            head has on text. Attention then reads its keys twice, as for a sink apart.
        band: The share of the rows of text that this band holds.
        most: The largest β, and the largest 1/β.
        prompts: Texts of lines in a step at the full length, and as many more of shorter ones.
        asked: Questions for each of them, read together: they cost little, and one alone tells
            little of what to change. Of a model that cannot read them together, 1.
        texts: In a step at the full length, and as many more of shorter ones.
        learning_rate: Of Adam at first, in units of ln β and γ, for a head of average effect on
            text; half of it after the first cost.
        weighings: How often texts are read at first to learn which heads they feel most.
        check_every: Steps between two looks at prompts and text that are not fitted to.
        patience: Looks without an improvement after which a strength is done with.
        check_prompts: For each of the templates to look at, at the longest length and at half.
        check_texts: Windows of text to look at.
        max_text_loss: How much the loss on text may grow, as a share.
        seed: Of the prompts and texts.
        at_once: Sequences that go through the model together; None for one on a CPU, and on a GPU
            for all of a step, or as many as its memory has room for.
        checkpointing: Whether to compute activations twice rather than keep them.
        own: The share of the texts of lines that give way to one of the user's own questions each,
            where there are any; at 1 there are no others, nor any to look at.
        drawn: The share of prompts to fit to whose template is made up at random.
        templates: Of the other prompts.
        checked: Templates to look at.
    """

    length: int = 2048
    shortest: int = 256
    reference_length: int = 256
    costs: tuple[float, ...] = ()
    steps: int = 200
    heads: tuple[int, ...] = (64, 32, 16, 8)
    sink: bool = True
    entropy: bool = True
    band: float = 0.8
    most: float = 8.0
    prompts: int = 12
    asked: int = 16
    texts: int = 8
    learning_rate: float = 0.1
    weighings: int = 3
    check_every: int = 50
    patience: int = 3
    check_prompts: int = 16
    check_texts: int = 8
    max_text_loss: float = 0.01
    seed: int = 0
    at_once: int | None = None
    checkpointing: bool = False
    own: float = 0.5
    drawn: float = 0.75
    templates: tuple[str, ...] = tuple(
        name for name in TEMPLATES if name not in (*HELD_OUT, *CHECKED)
    )
    checked: tuple[str, ...] = CHECKED

    def __post_init__(self) -> None:
        _require_kinds(self)
        if self.max_text_loss < 0:
            raise ValueError(f"max_text_loss must be at least 0, got {self.max_text_loss}")
        if not self.costs:
            costs = tuple(round(times * self.max_text_loss, 6) for times in TIMES)
            object.__setattr__(self, "costs", tuple(dict.fromkeys(costs)))
        for name, value in LEAST.items():
            if getattr(self, name) < value:
                raise ValueError(f"{name} must be at least {value}, got {getattr(self, name)}")
        if self.length < self.shortest:
            raise ValueError(
                f"length must be at least that of the shortest prompts, {self.shortest}, "
                f"got {self.length}"
            )
        if min(self.costs) < 0:
            raise ValueError(f"costs must be at least 0, got {_told(self.costs)}")
        if len({f"{cost:g}" for cost in self.costs}) < len(self.costs):
            raise ValueError(f"costs must differ, got {_told(self.costs)}")
        falls = all(more > fewer for more, fewer in itertools.pairwise(self.heads))
        if not falls or min(self.heads, default=1) < 1:
            raise ValueError(
                f"heads must be fewer and fewer, and at least 1, got {_told(self.heads)}"
            )
        if self.at_once is not None and self.at_once < 1:
            raise ValueError(f"at_once must be at least 1, got {self.at_once}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}")
        if not 0 <= self.band < 1:
            raise ValueError(f"band must be at least 0 and below 1, got {self.band}")
        for name in ("own", "drawn"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be a share from 0 to 1, got {getattr(self, name)}")
        if not self.most > 1:
            raise ValueError(f"most must be above 1, got {self.most}")
        self._require_templates()

    def _require_templates(self) -> None:
        known = [name for name in TEMPLATES if name not in HELD_OUT]
        for name in (*self.templates, *self.checked):
            if name in HELD_OUT:
                raise ValueError(f"templates must leave {name!r} for tests: {', '.join(known)}")
            if name not in TEMPLATES:
                raise ValueError(f"templates must be among {', '.join(known)}, got {name!r}")
        if not self.templates or not self.checked:
            raise ValueError("templates to fit to and templates to look at must be given")
        if both := set(self.templates) & set(self.checked):
            raise ValueError(
                f"templates must leave those that are looked at, {', '.join(self.checked)}, "
                f"got {', '.join(both)}"
            )


def _require_kinds(settings: Settings) -> None:
    """Raise an error where a setting is not of its kind or not finite; make tuples of the several.

    Raises:
        TypeError: If it is of another kind.
        ValueError: If it is infinite or NaN.
    """
    for field in fields(settings):
        name, value = field.name, getattr(settings, field.name)
        several = isinstance(field.default, tuple)
        if several:
            if isinstance(value, str) or not isinstance(value, Iterable):
                raise TypeError(f"{name} must be several, such as a tuple, got {value!r}")
            value = tuple(value)
            object.__setattr__(settings, name, value)
        kind = KINDS.get(name, type(field.default))
        for each in value if several else (value,):
            if each is None and field.default is None:
                continue
            is_one = isinstance(each, (int, float) if kind is float else kind)
            if not is_one or isinstance(each, bool) != (kind is bool):
                raise TypeError(f"{name} must be of type {kind.__name__}, got {each!r}")
            if isinstance(each, float) and not math.isfinite(each):
                raise ValueError(f"{name} must be finite, got {each!r}")


def _told(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
