"""The settings of a calibration."""

from __future__ import annotations

from dataclasses import dataclass

from sharpmax.tasks.key_value import HELD_OUT, TEMPLATES

CHECKED = ("phone", "pet", "record", "letter")
"""Templates that nothing is fitted to, but that tell when to stop."""


@dataclass(frozen=True)
class Settings:
    """What to fit, to what, and for how long.

    Attributes:
        length: Of the longest prompts and texts to fit to, in tokens.
        shortest: Of the shortest prompts.
        reference_length: Up to which β does not change with the length.
        ties: How strongly the predictions on text are tied to the original model's, one strength
            after another: the weights of their divergence in the loss. A loose tie finds what
            helps, and tighter ones take away of it what text must pay for.
        steps: At each of them, at most, and twice as many at the first.
        heads: After that, how many heads may stay changed, fewer and fewer.
        entropy: Whether β depends on the entropy too, where it leaves the band that a head has on
            text. Attention then reads its keys twice.
        band: The share of the rows of text that this band holds.
        most: The largest β, and the largest 1/β.
        prompts: In a step.
        texts: In a step.
        learning_rate: Of Adam, in units of ln β, for a head of average effect on text.
        weighings: How often texts are read at first to learn which heads they feel most.
        check_every: Steps between two looks at prompts and text that are not fitted to.
        patience: Looks without an improvement after which a strength is done with.
        check_prompts: For each of the templates to look at, at the longest length and at half.
        check_texts: Windows of text to look at.
        max_text_loss: How much the loss on text may grow, as a share.
        seed: Of the prompts and texts.
        at_once: Sequences that go through the model together; None for all of a step on a GPU
            and one on a CPU.
        checkpointing: Whether to compute activations twice rather than keep them.
        templates: To fit to.
        checked: Templates to look at.
    """

    length: int = 2048
    shortest: int = 256
    reference_length: int = 256
    ties: tuple[float, ...] = (8.0, 16.0, 32.0, 64.0)
    steps: int = 100
    heads: tuple[int, ...] = (64, 32, 16, 8)
    entropy: bool = True
    band: float = 0.8
    most: float = 8.0
    prompts: int = 12
    texts: int = 4
    learning_rate: float = 0.02
    weighings: int = 3
    check_every: int = 50
    patience: int = 2
    check_prompts: int = 8
    check_texts: int = 8
    max_text_loss: float = 0.01
    seed: int = 0
    at_once: int | None = None
    checkpointing: bool = False
    templates: tuple[str, ...] = tuple(
        name for name in TEMPLATES if name not in (*HELD_OUT, *CHECKED)
    )
    checked: tuple[str, ...] = CHECKED

    def __post_init__(self) -> None:
        for name in ("ties", "heads", "templates", "checked"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        least = {"steps": 1, "prompts": 1, "texts": 1, "check_every": 1, "patience": 1}
        least |= {
            "check_prompts": 1,
            "check_texts": 2,
            "weighings": 1,
            "shortest": 64,
            "reference_length": 1,
        }
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ValueError(f"{name} must be at least {value}, got {getattr(self, name)}")
        if self.length < self.shortest:
            raise ValueError(
                f"length must be at least that of the shortest prompts, {self.shortest}, "
                f"got {self.length}"
            )
        if not self.ties or min(self.ties) < 0:
            raise ValueError(f"ties must be numbers of at least 0, got {list(self.ties)}")
        if any(count < 1 for count in self.heads):
            raise ValueError(f"heads must be at least 1, got {list(self.heads)}")
        for name, form in (("ties", "g"), ("heads", "d")):
            told = [format(value, form) for value in getattr(self, name)]
            if len({*told}) < len(told):
                raise ValueError(f"{name} must differ, got {', '.join(told)}")
        if self.at_once is not None and self.at_once < 1:
            raise ValueError(f"at_once must be at least 1, got {self.at_once}")
        if not self.max_text_loss >= 0:
            raise ValueError(f"max_text_loss must be at least 0, got {self.max_text_loss}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}")
        if not 0 <= self.band < 1:
            raise ValueError(f"band must be at least 0 and below 1, got {self.band}")
        if not self.most > 1:
            raise ValueError(f"most must be above 1, got {self.most}")
        for name in (*self.templates, *self.checked):
            if name not in TEMPLATES:
                raise ValueError(f"templates must be among {', '.join(TEMPLATES)}, got {name!r}")
        if not self.templates or not self.checked or set(self.templates) & set(self.checked):
            raise ValueError("templates to fit to and to look at must be given, and differ")
