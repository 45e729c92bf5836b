"""The policies that a calibrated one is compared with, each as good as a few looks can make it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from sharpmax.hf.calibrate.entropies import text_entropies
from sharpmax.hf.calibrate.fit import parts
from sharpmax.hf.calibrate.losses import answer_logits, are_right
from sharpmax.hf.reader import Reader
from sharpmax.hf.sharpen import sharpen
from sharpmax.per_head import PerHead
from sharpmax.policies import HELD, PAPER, EntropyCap, Fixed, LogLength

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PreTrainedModel

    from sharpmax.hf.calibrate.examples import Examples
    from sharpmax.policy import Policy

GRID = (0.8, 0.9, 1.1, 1.2, 1.4, 1.7, 2.0)
"""The values that the one β of all heads is chosen from."""
FAMILIAR = 512
"""Up to so many tokens nothing is lost yet: log-length scaling begins there, and the entropies of
rows up to that length are the caps."""
CAPPED = 0.95
"""The share of those rows that the caps leave alone."""
LEAST_CAP = 0.05
AT_ONCE = 8
RIVALS = ("paper", "held", "log length", "one β", "entropy caps")


def rivals(model: PreTrainedModel, examples: Examples) -> Mapping[str, Policy]:
    """Return the policies by name, `RIVALS`.

    One β for all heads is the one of a grid that finds most of the prompts that `calibrate` looks
    at; entropies are capped head by head at what is ordinary in text of up to 512 tokens.
    """
    entropies = text_entropies(Reader(model), examples.fitted_texts(), sink_apart=False)
    caps = entropies.quantile(CAPPED, FAMILIAR).clamp(min=LEAST_CAP)
    policies = (
        PAPER,
        HELD,
        LogLength(FAMILIAR, 1 / math.log(FAMILIAR)),
        best_fixed(model, examples),
        PerHead(EntropyCap(1.0), {"nats": caps.tolist()}),
    )
    return dict(zip(RIVALS, policies, strict=True))


def best_fixed(model: PreTrainedModel, examples: Examples) -> Fixed:
    """Return the β of the grid that finds most, the one nearest to 1 among equals."""
    reader, groups = Reader(model, examples.settings.length), examples.checked_prompts()
    at_once = 1 if model.device.type == "cpu" else AT_ONCE

    def found(beta: float) -> int:
        with torch.no_grad(), sharpen(model, Fixed(beta)):
            return sum(
                sum(are_right(answer_logits(reader, some), [p for group in some for p in group]))
                for some in parts(groups, at_once)
            )

    return Fixed(max(GRID, key=lambda beta: (found(beta), -abs(math.log(beta)))))
