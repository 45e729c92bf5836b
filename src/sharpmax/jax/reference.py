"""Attention and its row statistics by definition: all logits at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharpmax.jax.scores import weighted
from sharpmax.statistics import RowStatistics

if TYPE_CHECKING:
    from jax import Array

    from sharpmax.jax.scores import Scores
    from sharpmax.policy import Policy


def attend(scores: Scores, value: Array, policy: Policy) -> tuple[Array, RowStatistics]:
    """Return softmax(β·logits)·value and the statistics."""
    rows = scores.rows()
    return weighted(rows.softmax(policy(rows)), value), row_statistics(scores)


def row_statistics(scores: Scores) -> RowStatistics:
    """Return the statistics of every row."""
    rows = scores.rows()
    return RowStatistics(*rows.summary(), rows.length)
