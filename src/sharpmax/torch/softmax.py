"""The sharpened softmax on a GPU: one kernel where the policy fits into it, otherwise two.

The kernels themselves are in `kernels/softmax.py`, which needs Triton; this module decides
whether to take a call, lets the policy choose between the kernels, and connects them to autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from sharpmax.arrays import at_least, move_axis
from sharpmax.rows import SMALLEST_BETA, LogitRows
from sharpmax.statistics import RowStatistics
from sharpmax.torch.row_statistics.triton import HAS_TRITON

if TYPE_CHECKING:
    from sharpmax.policy import Policy

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
STATISTICS = frozenset({"max", "lse", "mean", "entropy", "length", "detached"})


def fused_softmax(rows: LogitRows, policy: Policy) -> Tensor | None:
    """Return softmax(β·s) of the rows by our kernels, or None where they cannot take the call.

    A polynomial of the entropy is evaluated inside the kernel, on rows that fit: one read, one
    write. Every other policy that reads statistics gets them from a kernel of their own, and a
    second one computes the softmax at the β that it chose.
    """
    if _is_traced(rows) or not HAS_TRITON:
        return None
    if rows.logits.dtype not in DTYPES or rows.logits.numel() == 0:
        return None
    if not policy.reads <= STATISTICS:
        return None
    from sharpmax.torch.kernels.polynomial import polynomial_settings
    from sharpmax.torch.kernels.softmax import fits

    if rows.logits.stride(1) != 1:
        rows = replace(rows, logits=rows.logits.contiguous())
    recorded = torch.is_grad_enabled() and rows.logits.requires_grad
    if recorded and "max" in policy.reads:
        return None  # the kernels have no gradient for it
    settings = polynomial_settings(policy) if policy.reads == {"entropy"} else None
    if settings is not None and fits(rows.logits.shape[1], arrays=2 if recorded else 1):
        weights = _softmax(rows, None, policy)
    else:
        beta = at_least(SMALLEST_BETA, policy(_statistics(rows) if policy.reads else rows))
        if isinstance(beta, Tensor):
            beta = beta.to(rows.logits.device, torch.float32)
            beta = beta.broadcast_to(rows.shape).reshape(-1).contiguous()
        weights = _softmax(rows, beta if isinstance(beta, Tensor) else float(beta), None)
    return move_axis(weights.reshape(*rows.shape, -1), -1, rows.axis)  # type: ignore[no-any-return]


def _is_traced(rows: LogitRows) -> bool:
    """Tell whether a compiler or a transformation (`torch.func`, forward mode) is looking on.

    It has to see ordinary operations; Inductor fuses those by itself.
    """
    return (
        torch.compiler.is_compiling()
        or type(rows.logits) not in (Tensor, torch.nn.Parameter)
        or torch._C._functorch.maybe_current_level() is not None
        or unpack_dual(rows.logits).tangent is not None  # type: ignore[no-untyped-call]
    )


def _statistics(rows: LogitRows) -> RowStatistics:
    """Return the statistics of the rows, all of them in one pass."""
    found = _Statistics.apply(rows.logits, rows.where)  # type: ignore[no-untyped-call]
    return RowStatistics(*(number.reshape(rows.shape) for number in found))


def _softmax(rows: LogitRows, beta: Tensor | float | None, policy: Policy | None) -> Tensor:
    """Return the weights, of shape (rows, length), at a given β or by a polynomial policy."""
    inputs = [x for x in (rows.logits, beta) if isinstance(x, Tensor)]
    weights: Tensor
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        weights = _Softmax.apply(  # type: ignore[no-untyped-call]
            rows.logits, beta, rows.where, policy
        )
        return weights
    from sharpmax.torch.kernels import softmax as kernels

    weights, _ = kernels.softmax(rows.logits, rows.where, beta, _settings(policy), keep=False)
    return weights


class _Statistics(torch.autograd.Function):
    """The maximum, the log-sum-exp, the entropy and the length of every row."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, where: Tensor | None) -> tuple[Tensor, ...]:
        from sharpmax.torch.kernels import softmax as kernels

        found = kernels.statistics(logits, where)
        ctx.save_for_backward(logits, where, found)
        maximum, lse, entropy, length, _ = found.unbind(1)
        ctx.mark_non_differentiable(maximum, length)
        return maximum, lse, entropy, length

    @staticmethod
    def backward(
        ctx: Any, _: Tensor, grad_lse: Tensor, grad_entropy: Tensor, __: Tensor
    ) -> tuple[Tensor | None, ...]:
        from sharpmax.torch.kernels import softmax as kernels

        logits, where, found = ctx.saved_tensors
        if torch.is_grad_enabled():

            def lse_and_entropy(logits: Tensor) -> Sequence[Tensor]:
                return LogitRows(logits, where, logits.shape[:1], -1).summary()[1:]

            grads = _differentiable(lse_and_entropy, (logits,), (grad_lse, grad_entropy))
            return (*grads, None)
        return kernels.statistics_backward(logits, where, found, grad_lse, grad_entropy), None


class _Softmax(torch.autograd.Function):
    """softmax(β·s) at a given β, or at the β of a polynomial of the entropy."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        beta: Tensor | float | None,
        where: Tensor | None,
        policy: Policy | None,
    ) -> Tensor:
        from sharpmax.torch.kernels import softmax as kernels

        ctx.beta, ctx.policy = (None if isinstance(beta, Tensor) else beta), policy
        weights, numbers = kernels.softmax(logits, where, beta, _settings(policy), keep=True)
        ctx.save_for_backward(logits, beta if ctx.beta is None else None, where, numbers)
        return weights

    @staticmethod
    def backward(ctx: Any, grad_weights: Tensor) -> tuple[Tensor | None, ...]:
        from sharpmax.torch.kernels import softmax as kernels

        logits, beta, where, numbers = ctx.saved_tensors
        beta = ctx.beta if beta is None else beta
        if torch.is_grad_enabled():

            def softmax(logits: Tensor, beta: Tensor | float | None) -> Sequence[Tensor]:
                rows = LogitRows(logits, where, logits.shape[:1], -1)
                return (rows.softmax(beta if ctx.policy is None else ctx.policy(rows)),)

            grads = _differentiable(softmax, (logits, beta), (grad_weights,))
            return (*grads, None, None)
        grads = kernels.softmax_backward(
            logits, where, beta, _settings(ctx.policy), numbers, grad_weights
        )
        return (*grads, None, None)


def _settings(policy: Policy | None) -> dict[str, Any] | None:
    """Return a polynomial as the kernels take it, β bounded below as everywhere."""
    from sharpmax.torch.kernels.polynomial import polynomial_settings

    settings = None if policy is None else polynomial_settings(policy)
    if settings is not None:
        settings["minimum"] = max(settings["minimum"], SMALLEST_BETA)
    return settings


def _differentiable(
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[Any], grads: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Return gradients that can be differentiated again, of a function of ordinary operations.

    The kernels' own gradients cannot; autograd asks for this with `create_graph=True`.
    """
    # Views, because β may itself have come from the logits: that way is not this function's.
    inputs = [x.view_as(x) if isinstance(x, Tensor) else x for x in inputs]
    wanted = [isinstance(x, Tensor) and x.requires_grad for x in inputs]
    of = [x for x, is_wanted in zip(inputs, wanted, strict=True) if is_wanted]
    found = iter(torch.autograd.grad(function(*inputs), of, grads, create_graph=True))
    return tuple(next(found) if is_wanted else None for is_wanted in wanted)
