"""Row statistics from the logits of a few queries at a time: linear memory, any device.

In training, a chunk's logits are made again in the backward pass instead of being kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharpmax.statistics import RowStatistics
from sharpmax.torch.chunks import by_chunks

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.torch.scores import Scores


def refusal(scores: Scores) -> None:
    """Take every call."""
    del scores


def row_statistics(scores: Scores) -> RowStatistics:
    """Return the statistics, chunk by chunk."""

    def of(queries: slice) -> tuple[Tensor, ...]:
        keys = scores.keys_seen(queries)
        logits = scores.logits(queries, keys)
        return RowStatistics.from_logits(logits, where=scores.visible(queries, keys))

    maximum, lse, entropy, length = by_chunks(of, scores.chunks(), scores.shape[2])
    return RowStatistics(maximum, lse, entropy, length)
