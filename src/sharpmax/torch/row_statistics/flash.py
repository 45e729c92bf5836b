"""Row statistics from any flash kernel that returns the log-sum-exp, with the keys as values.

The kernel's output is then Σ p·k, and scale·q·(Σ p·k) = Σ p·s is the mean logit, so that the
entropy is lse − scale·⟨q, Attention(q, k, k)⟩: no kernel of one's own is needed. The backward
pass is the kernel's as well: with the output's gradient g = −scale·q it computes
p·(⟨g, k⟩ − ⟨g, Σ p·k⟩) = −p·(s − mean), which is ∂H/∂s.

The difference of lse and mean loses digits where logits are large: its error is some 1e-7 times
the largest logit in float32.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from sharpmax.statistics import RowStatistics

if TYPE_CHECKING:
    from torch import Tensor

    from sharpmax.torch.scores import Scores

aten = torch.ops.aten


def refusal(scores: Scores) -> str | None:
    """Tell why no flash kernel fits, or None."""
    if scores.softcap is not None:
        return "cannot apply a softcap"
    if not (scores.sees_all or scores.is_square_causal):
        return "can only see all keys, or as many as there are queries causally"
    if scores.query.numel() == 0:
        return "need at least one query"
    if not scores.scale > 0:
        return f"need a scale above 0, got {scores.scale}"
    if scores.query.device.type == "cpu":
        return None
    if scores.query.device.type != "cuda":
        return f"have no kernel for {scores.query.device.type}"
    if scores.query.dtype not in (torch.float16, torch.bfloat16):
        return f"have no CUDA kernel for {scores.query.dtype}"
    if scores.query.shape[-1] > 256 or scores.query.shape[-1] % 8:
        return f"have no CUDA kernel for a width of {scores.query.shape[-1]}"
    return None


def row_statistics(scores: Scores) -> RowStatistics:
    """Return the statistics; the maximum is not known and therefore NaN."""
    group = scores.query.shape[1] // scores.key.shape[1]
    key = scores.key.repeat_interleave(group, dim=1) if group > 1 else scores.key
    # The kernels take the last axis for contiguous, and do not say so.
    query, key = (x if x.stride(-1) == 1 else x.contiguous() for x in (scores.query, key))
    if query.device.type == "cpu":
        # Half precisions would round Σ p·k, and with it the entropy.
        dtype = torch.promote_types(query.dtype, torch.float32)
        query, key = query.to(dtype), key.to(dtype)
    is_causal = scores.is_square_causal and not scores.sees_all
    lse, entropy = _Flash.apply(  # type: ignore[no-untyped-call]
        query, key, is_causal, scores.scale
    )
    unknown = torch.full_like(lse, math.nan)
    return RowStatistics(unknown, lse, entropy, scores.lengths().to(lse.dtype))


class _Flash(torch.autograd.Function):
    """The log-sum-exp and the entropy of every row."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, is_causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        out, lse, *rest = _kernel(query)(query, key, key, 0.0, is_causal, scale=scale)
        mean = scale * (query.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
        ctx.save_for_backward(query, key, out, lse)
        ctx.settings = is_causal, scale, rest
        ctx.set_materialize_grads(False)
        return lse, (lse - mean).clamp(min=0)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_lse: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor, Tensor, None, None]:
        query, key, out, lse = ctx.saved_tensors
        is_causal, scale, rest = ctx.settings
        grad_query, grad_key = torch.zeros_like(query), torch.zeros_like(key)

        def backward(grad_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return _backward(grad_out, query, key, out, lse, is_causal, scale, rest)

        if grad_entropy is not None:
            grad_query, grad_key, _ = backward(-scale * grad_entropy[..., None].to(query) * query)
        if grad_lse is not None:
            weighted = scale * grad_lse[..., None].to(query)
            grad_query = grad_query + weighted * out
            grad_key = grad_key + backward(weighted * query)[2]
        return grad_query, grad_key, None, None


def _kernel(query: Tensor) -> Any:
    if query.device.type == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu
    return aten._scaled_dot_product_flash_attention


def _backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    out: Tensor,
    lse: Tensor,
    is_causal: bool,
    scale: float,
    rest: list[Any],
) -> tuple[Tensor, Tensor, Tensor]:
    """Call the kernel's own backward pass, the keys being the values."""
    tensors = grad_out.contiguous(), query, key, key, out, lse
    gradients: tuple[Tensor, Tensor, Tensor]
    if query.device.type == "cpu":
        gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *tensors, 0.0, is_causal, scale=scale
        )
    else:
        cum_q, cum_k, max_q, max_k, seed, offset, _ = rest
        gradients = aten._scaled_dot_product_flash_attention_backward(
            *tensors, cum_q, cum_k, max_q, max_k, 0.0, is_causal, seed, offset, scale=scale
        )
    return gradients
