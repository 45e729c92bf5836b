"""Attention in two halves, both by cuDNN: statistics from attention over the keys, then β·q."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharpmax.jax import flash

if TYPE_CHECKING:
    from jax import Array

    from sharpmax.jax.scores import Scores
    from sharpmax.policy import Policy
    from sharpmax.statistics import RowStatistics

refusal = flash.refusal


def attend(scores: Scores, value: Array, policy: Policy) -> tuple[Array, RowStatistics]:
    """Return softmax(β·logits)·value and the statistics."""
    return flash.attend(scores, value, policy, row_statistics)


def row_statistics(scores: Scores) -> RowStatistics:
    """Return the statistics of every row; the largest logits stay unknown, NaN."""
    return flash.statistics(scores, flash.by_identity)
