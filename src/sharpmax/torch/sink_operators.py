"""The kernels of a sink that stands apart as operators of PyTorch, with their gradients."""

from typing import Any

import torch
from torch import Tensor

from sharpmax.torch.operators import on_device_of, operator


@operator("sharpmax::log_linear")
def log_linear(
    length: Tensor,
    table: Tensor,
    entropy: Tensor | None,
    lse: Tensor | None,
    logit: Tensor | None,
    reference: float,
    most: float,
) -> Tensor:
    """Return the policy `LogLinear`'s β of every row, or its sink's log-odds."""
    from sharpmax.torch.kernels import log_linear as triton

    with on_device_of(length):
        return triton.log_linear(length, table, entropy, lse, logit, reference, most)


@log_linear.register_fake
def _(length: Tensor, *_: object) -> Tensor:
    return length.new_empty(length.shape, dtype=torch.float32)


@operator("sharpmax::log_linear_backward")
def log_linear_backward(
    grad: Tensor,
    length: Tensor,
    table: Tensor,
    entropy: Tensor | None,
    lse: Tensor | None,
    logit: Tensor | None,
    reference: float,
    most: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients by the table, the entropies, the log-sum-exps and the sinks' logits."""
    from sharpmax.torch.kernels import log_linear as triton

    with on_device_of(length):
        return triton.log_linear_backward(grad, length, table, entropy, lse, logit, reference, most)


@log_linear_backward.register_fake
def _(
    grad: Tensor,
    length: Tensor,
    table: Tensor,
    entropy: Tensor | None,
    lse: Tensor | None,
    logit: Tensor | None,
    *_: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    del length
    by_entropy, by_lse, by_logit = (
        grad.new_empty((0,) if x is None else grad.shape) for x in (entropy, lse, logit)
    )
    return table.new_empty(table.shape), by_entropy, by_lse, by_logit


def _keep_log_linear(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs[:5])
    ctx.settings = inputs[5:]


def _backward_log_linear(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    length, table, *rows = ctx.saved_tensors
    by_table, *found = log_linear_backward(grad, length, table, *rows, *ctx.settings)
    wanted = [
        by_row if wants else None
        for by_row, wants in zip(found, ctx.needs_input_grad[2:5], strict=True)
    ]
    return None, by_table, *wanted, None, None


log_linear.register_autograd(_backward_log_linear, setup_context=_keep_log_linear)


@operator("sharpmax::sink_logit")
def sink_logit(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Return the logit of every query's sink."""
    from sharpmax.torch.kernels import sink as triton

    with on_device_of(query):
        return triton.sink_logit(query, key, scale)


@sink_logit.register_fake
def _(query: Tensor, *_: object) -> Tensor:
    return query.new_empty(query.shape[:3], dtype=torch.float32)


@operator("sharpmax::sink_logit_backward")
def sink_logit_backward(
    grad: Tensor, query: Tensor, key: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the gradients by the query and by the sinks' keys."""
    from sharpmax.torch.kernels import sink as triton

    with on_device_of(query):
        return triton.sink_logit_backward(grad, query, key, scale)


@sink_logit_backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, _: float) -> tuple[Tensor, Tensor]:
    del grad
    return query.new_empty(query.shape), key.new_empty(key.shape)


def _keep_sink_logit(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    query, key, ctx.scale = inputs
    ctx.save_for_backward(query, key)


def _backward_sink_logit(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *sink_logit_backward(grad, *ctx.saved_tensors, ctx.scale), None


sink_logit.register_autograd(_backward_sink_logit, setup_context=_keep_sink_logit)


@operator("sharpmax::sink_joined")
def sink_joined(others: Tensor, own: Tensor, odds: Tensor, before: int) -> Tensor:
    """Return attention to all keys, from that to the others and the sink's log-odds."""
    from sharpmax.torch.kernels import sink as triton

    with on_device_of(others):
        return triton.sink_joined(others, own, odds, before)


@sink_joined.register_fake
def _(others: Tensor, own: Tensor, odds: Tensor, before: int) -> Tensor:
    del own, odds
    batch, heads, queries, width = others.shape
    return others.new_empty((batch, heads, before + queries, width))


@operator("sharpmax::sink_joined_backward")
def sink_joined_backward(
    grad: Tensor, others: Tensor, own: Tensor, odds: Tensor, before: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients by the others, by the sinks' values and by their odds."""
    from sharpmax.torch.kernels import sink as triton

    with on_device_of(others):
        return triton.sink_joined_backward(grad, others, own, odds, before)


@sink_joined_backward.register_fake
def _(
    grad: Tensor, others: Tensor, own: Tensor, odds: Tensor, _: int
) -> tuple[Tensor, Tensor, Tensor]:
    del grad
    by_others, by_own, by_odds = (x.new_empty(x.shape) for x in (others, own, odds))
    return by_others, by_own, by_odds


def _keep_sink_joined(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    *tensors, ctx.before = inputs
    ctx.save_for_backward(*tensors)


def _backward_sink_joined(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *sink_joined_backward(grad, *ctx.saved_tensors, ctx.before), None


sink_joined.register_autograd(_backward_sink_joined, setup_context=_keep_sink_joined)
