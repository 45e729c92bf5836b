"""Row statistics by their definition, from all the logits at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharpmax.statistics import RowStatistics

if TYPE_CHECKING:
    from sharpmax.torch.scores import Scores


def refusal(scores: Scores) -> None:
    """Take every call."""
    del scores


def row_statistics(scores: Scores) -> RowStatistics:
    """Return the statistics of the materialised logits."""
    queries, keys = slice(0, scores.query.shape[2]), slice(0, scores.key.shape[2])
    logits = scores.logits(queries, keys)
    return RowStatistics.from_logits(logits, where=scores.visible(queries, keys))
