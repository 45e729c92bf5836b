"""The settings of a training on CLRS-Text."""

from __future__ import annotations

from dataclasses import dataclass

from sharpmax.tasks.clrs.decoder import DECODERS


@dataclass(frozen=True)
class Settings:
    """What to train, and for how long.

    Attributes:
        decoder: The size of a decoder to train from scratch.
        model: Pretrained weights to train further in its place: a folder.
        lora: The rank of the updates that are trained instead of all weights; 0 for all weights.
        context: In tokens; longer samples are left out, and counted.
        batch: Samples in a step, over all processes.
        accumulation: Parts in which each process works through its share of a batch.
        steps: Of AdamW; the learning rate warms up and falls along a cosine.
        learning_rate: At most.
        seed: Of the weights and of the order of the samples.
        bf16: Whether to compute in bfloat16 where that is safe.
        compile: Whether to let torch compile the layers.
        save_every: Steps between checkpoints.
    """

    decoder: str = "small"
    model: str | None = None
    lora: int = 0
    context: int = 1024
    batch: int = 64
    accumulation: int = 1
    steps: int = 1000
    learning_rate: float = 1e-3
    seed: int = 0
    bf16: bool = False
    compile: bool = False
    save_every: int = 500

    def __post_init__(self) -> None:
        if self.decoder not in DECODERS:
            raise ValueError(f"decoder must be one of {', '.join(DECODERS)}, got {self.decoder!r}")
        least = {"context": 16, "batch": 1, "accumulation": 1, "steps": 1, "save_every": 1}
        for name, value in (least | {"lora": 0, "seed": 0}).items():
            if getattr(self, name) < value:
                raise ValueError(f"{name} must be at least {value}, got {getattr(self, name)}")
        if self.lora and self.model is None:
            raise ValueError("lora updates weights that are there already: give a model as well")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}")
