"""Row statistics by large products of bfloat16, in training on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from sharpmax.statistics import RowStatistics
from sharpmax.torch.products import ProductRows, refusal
from sharpmax.torch.scores import Scores

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["refusal", "row_statistics"]

aten = torch.ops.aten


def row_statistics(scores: Scores) -> RowStatistics:
    """Return the statistics; the maximum carries no gradient."""
    maximum, lse, entropy = _Statistics.apply(  # type: ignore[no-untyped-call]
        scores.query * scores.scale, scores.key, scores.mask, scores.is_causal, scores.window
    )
    return RowStatistics(maximum, lse, entropy, scores.lengths())


class _Statistics(torch.autograd.Function):
    """The maximum, the log-sum-exp and the entropy of every row of queries that are scaled."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        window: int | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows = ProductRows(Scores(query, key, 1.0, is_causal, window, mask=mask))
        maximum, lse, entropy = (
            query.new_empty(query.shape[:-1], dtype=torch.float32) for _ in range(3)
        )

        def by_head(column: Tensor) -> Tensor:
            return rows.unstacked(column[..., None])[..., 0]

        for queries, _, logits, weights in rows.parts():
            highest, likeliest = (x.amax(-1).float() for x in (logits, weights))
            maximum[:, :, queries] = by_head(highest)
            lse[:, :, queries] = by_head(highest - likeliest.log())
            surprise = _log(weights, out=logits).mul_(weights)
            entropy[:, :, queries] = by_head(-surprise.sum(-1, dtype=torch.float32))
        ctx.save_for_backward(query, key, mask)
        ctx.sight = is_causal, window
        ctx.mark_non_differentiable(maximum)
        ctx.set_materialize_grads(False)
        return maximum, lse, entropy.clamp_(min=0)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, _: None, of_lse: Tensor | None, of_entropy: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """∂lse/∂s = p, and ∂H/∂s = −p·(ln p − Σ p·ln p), which is softmax's own at −ln p."""
        query, key, mask = ctx.saved_tensors
        is_causal, window = ctx.sight
        rows = ProductRows(Scores(query, key, 1.0, is_causal, window, mask=mask))
        of_query = torch.empty_like(query)
        of_key = torch.zeros_like(key, dtype=torch.float32)

        def column(of_rows: Tensor, queries: slice) -> Tensor:
            return rows.stacked(of_rows[..., None].to(query.dtype), queries)

        for queries, keys, logits, weights in rows.parts():
            if of_entropy is not None:
                of_weights = _log(weights, out=logits).mul_(-column(of_entropy, queries))
                of_logits = rows.place("gradient", weights.shape)
                aten._softmax_backward_data.out(
                    of_weights, weights, -1, weights.dtype, grad_input=of_logits
                )
                if of_lse is not None:
                    of_logits.addcmul_(weights, column(of_lse, queries))
            else:
                assert of_lse is not None
                of_logits = weights.mul_(column(of_lse, queries))
            of_query[:, :, queries] = rows.unstacked(of_logits @ key[:, :, keys])
            of_key[:, :, keys] += of_logits.mT @ rows.stacked(query, queries)
        return of_query, of_key.to(key.dtype), None, None, None


def _log(weights: Tensor, out: Tensor) -> Tensor:
    """Return the logarithms of weights, where one of 0 has a very low but finite one."""
    return torch.clamp(weights, min=torch.finfo(weights.dtype).tiny, out=out).log_()
