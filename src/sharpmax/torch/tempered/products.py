"""Attention at a given β by large products of bfloat16, in training on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from sharpmax.torch import products
from sharpmax.torch.products import ProductRows
from sharpmax.torch.scores import Scores

if TYPE_CHECKING:
    from torch import Tensor

aten = torch.ops.aten


def refusal(
    scores: Scores, value: Tensor, beta: Tensor | float, maximum: Tensor | None
) -> str | None:
    """Tell why large products are not for the call, or None."""
    del maximum
    return products.refusal(scores, value, beta)


def attend(scores: Scores, value: Tensor, beta: Tensor | float, maximum: Tensor | None) -> Tensor:
    """Attend with β and the scale multiplied into the queries."""
    del maximum
    query, scale = scores.tempered(beta)
    out: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        query * scale, scores.key, value, scores.mask, scores.is_causal, scores.window
    )
    return out


class _Attention(torch.autograd.Function):
    """softmax(q·kᵀ)·v of queries that are scaled."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        window: int | None,
    ) -> Tensor:
        rows = ProductRows(Scores(query, key, 1.0, is_causal, window, mask=mask))
        out = query.new_empty(*query.shape[:-1], value.shape[-1])
        for queries, keys, _, weights in rows.parts():
            out[:, :, queries] = rows.unstacked(weights @ value[:, :, keys])
        ctx.save_for_backward(query, key, value, mask)
        ctx.sight = is_causal, window
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mask = ctx.saved_tensors
        is_causal, window = ctx.sight
        rows = ProductRows(Scores(query, key, 1.0, is_causal, window, mask=mask))
        of_query = torch.empty_like(query)
        of_key, of_value = (torch.zeros_like(x, dtype=torch.float32) for x in (key, value))
        for queries, keys, of_logits, weights in rows.parts():
            some = rows.stacked(grad, queries)
            of_weights = rows.product(some, value[:, :, keys].mT, "gradient")
            aten._softmax_backward_data.out(
                of_weights, weights, -1, weights.dtype, grad_input=of_logits
            )
            of_query[:, :, queries] = rows.unstacked(of_logits @ key[:, :, keys])
            of_key[:, :, keys] += of_logits.mT @ rows.stacked(query, queries)
            of_value[:, :, keys] += weights.mT @ some
        return of_query, of_key.to(key.dtype), of_value.to(value.dtype), None, None, None
