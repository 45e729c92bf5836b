"""The rows of attention, for policies that must know how their entropy falls with β.

A row is made again, tile by tile, whenever something is asked of it, so that each question is a
pass over the keys. The ladder makes few enough of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from sharpmax.torch.operators import ladder
from sharpmax.torch.row_statistics import triton

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.statistics import RowStatistics
    from sharpmax.torch.scores import Scores

RUNGS = 5


def refusal(scores: Scores) -> str | None:
    """Tell why the rows cannot be had this way, or None."""
    if torch.compiler.is_compiling():
        return "cannot be traced by torch.compile"
    in_training = torch.is_grad_enabled() and (
        scores.query.requires_grad or scores.key.requires_grad
    )
    if in_training and scores.softcap is not None:
        return "have no gradient behind a softcap"
    return triton.refusal(scores)


@dataclass(frozen=True)
class AttentionRows:
    """The rows of these scores; every array has shape (batch, heads, queries)."""

    scores: Scores

    @property
    def statistics(self) -> RowStatistics:
        """What one pass tells of every row."""
        return triton.row_statistics(self.scores)

    @property
    def max(self) -> Tensor:
        """The largest logit."""
        return self._climb(1.0, 1)[2]

    @property
    def lse(self) -> Tensor:
        """The log-sum-exp of the logits."""
        lse: Tensor = self.statistics.lse
        return lse

    @property
    def mean(self) -> Tensor:
        """The mean logit under the row's softmax."""
        mean: Tensor = self.statistics.mean
        return mean

    @property
    def entropy(self) -> Tensor:
        """The entropy of the row's softmax, in nats."""
        entropy: Tensor = self.statistics.entropy
        return entropy

    @property
    def length(self) -> Tensor:
        """How many keys are visible."""
        return self.scores.lengths()

    def detached(self) -> AttentionRows:
        """Return the same rows as constants, which no gradient flows through."""
        query, key = self.scores.query.detach(), self.scores.key.detach()
        return AttentionRows(replace(self.scores, query=query, key=key))

    def ladder(self, beta: Tensor | float = 1.0) -> Tensor:
        """Return the entropies at β, 2β, 4β, 8β and 16β, along a last axis, in one pass."""
        entropies, _, _ = self._climb(beta, RUNGS)
        return entropies

    def entropy_at(self, beta: Tensor | float) -> tuple[Tensor, Tensor]:
        """Return the entropy of softmax(β·s) and its slope dH/dβ; only the first has gradients."""
        entropies, slope, _ = self._climb(beta, 1)
        entropy = entropies[..., 0]
        query, key = self.scores.query, self.scores.key
        if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad):
            sharper = self.scores.sharper_query(self._each(beta).detach())
            scores = replace(self.scores, query=sharper)
            by_query_and_key = triton.row_statistics(scores).entropy
            # The value without the rounding of β·q, and the gradient with it.
            entropy = entropy + by_query_and_key - by_query_and_key.detach()
        return entropy, slope

    def _climb(self, beta: Tensor | float, rungs: int) -> tuple[Tensor, Tensor, Tensor]:
        constants = self.detached().scores
        found: tuple[Tensor, Tensor, Tensor] = ladder(
            *constants.arguments(), self._each(beta).detach(), rungs
        )
        return found

    def _each(self, beta: Tensor | float) -> Tensor:
        like = self.scores.query
        return torch.as_tensor(beta, dtype=torch.float32, device=like.device).expand(
            self.scores.shape
        )
