"""The fused kernels as operators of PyTorch: opaque to torch.compile, with their gradients.

`kernels` names who computes: "triton" takes every kind of logits, "hopper" the plain ones on a
Hopper GPU. Triton is imported at the first call.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.library import custom_op

from sharpmax.torch.scores import Scores

aten = torch.ops.aten


PLAIN = (Tensor, torch.nn.Parameter)


class Operator:
    """A function as an operator of PyTorch, which it takes PyTorch longer to call than a kernel.

    So the function itself is called where nothing traces: as a plain one, or as one with a
    gradient where that is wanted.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._function = function
        self._operator = custom_op(name, mutates_args=())(function)
        self._with_gradient: Callable[..., Any] = self._operator
        self.register_fake = self._operator.register_fake

    def register_autograd(
        self, backward: Callable[..., Any], *, setup_context: Callable[..., Any]
    ) -> None:
        """Tell how its gradient is found, as for `torch.library.custom_op`."""
        self._operator.register_autograd(backward, setup_context=setup_context)
        passes = {"forward": self._function, "setup_context": setup_context, "backward": backward}
        methods = {name: staticmethod(function) for name, function in passes.items()}
        kind: Any = type(self._function.__name__, (torch.autograd.Function,), methods)
        self._with_gradient = kind.apply

    def __call__(self, *arguments: Any) -> Any:
        """Call it by the shortest way."""
        tensors = [x for x in arguments if isinstance(x, Tensor)]
        if torch.compiler.is_compiling():
            return self._operator(*arguments)
        if any(unpack_dual(x).tangent is not None for x in tensors):  # type: ignore[no-untyped-call]
            raise NotImplementedError(
                "attention has no forward-mode derivatives by its kernels: use reverse mode, or "
                'implementation="reference"'
            )
        if _is_traced(tensors):
            return self._operator(*arguments)
        wants_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        return (self._with_gradient if wants_gradient else self._function)(*arguments)


def operator(name: str) -> Callable[[Callable[..., Any]], Operator]:
    """Make a function an operator of this name."""
    return functools.partial(Operator, name)


def is_transformed() -> bool:
    """Tell whether torch.func is at work, whose gradients the kernels have not."""
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._are_functorch_transforms_active())


def _is_traced(tensors: list[Tensor]) -> bool:
    """Tell whether PyTorch must learn of a call with these tensors."""
    if torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
        return True
    return any(type(x) not in PLAIN for x in tensors)


def on_device_of(tensor: Tensor) -> AbstractContextManager[None]:
    """Make the tensor's device the current one, where Triton launches."""
    return torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]


@operator("sharpmax::row_statistics")
def row_statistics(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    scale: float,
    is_causal: bool,
    window: int | None,
    softcap: float | None,
    kernels: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the maximum, the log-sum-exp and the entropy of every row."""
    scores = Scores(query, key, scale, is_causal, window, softcap, mask)
    if kernels == "hopper":
        from sharpmax.torch.kernels.hopper.statistics import statistics
    else:
        from sharpmax.torch.kernels.statistics import statistics
    with on_device_of(query):
        return statistics(scores)


@row_statistics.register_fake
def _(query: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    rows = query.new_empty(query.shape[:3], dtype=torch.float32)
    return rows, torch.empty_like(rows), torch.empty_like(rows)


@operator("sharpmax::row_statistics_backward")
def row_statistics_backward(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    scale: float,
    is_causal: bool,
    window: int | None,
    softcap: float | None,
    kernels: str,
    lse: Tensor,
    entropy: Tensor,
    grad_lse: Tensor,
    grad_entropy: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradients by the query and the key."""
    scores = Scores(query, key, scale, is_causal, window, softcap, mask)
    if kernels == "hopper":
        from sharpmax.torch.kernels.hopper.gradients import gradients
    else:
        from sharpmax.torch.kernels.statistics_backward import statistics_backward as gradients
    with on_device_of(query):
        return gradients(scores, lse, entropy, grad_lse, grad_entropy)


@row_statistics_backward.register_fake
def _(query: Tensor, key: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape)


def _keep_statistics(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, mask, *ctx.settings = inputs
    maximum, lse, entropy = output
    ctx.save_for_backward(query, key, mask, lse, entropy)
    ctx.mark_non_differentiable(maximum)


def _backward_statistics(
    ctx: Any, _: Tensor, grad_lse: Tensor, grad_entropy: Tensor
) -> tuple[Tensor | None, ...]:
    query, key, mask, lse, entropy = ctx.saved_tensors
    gradients = row_statistics_backward(
        query, key, mask, *ctx.settings, lse, entropy, grad_lse, grad_entropy
    )
    return *gradients, *[None] * 6


row_statistics.register_autograd(_backward_statistics, setup_context=_keep_statistics)


@operator("sharpmax::tempered")
def tempered(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    maximum: Tensor | None,
    mask: Tensor | None,
    scale: float,
    is_causal: bool,
    window: int | None,
    softcap: float | None,
    kernels: str,
) -> tuple[Tensor, Tensor]:
    """Return softmax(β·logits)·value and the log-sum-exp of β·logits."""
    scores = Scores(query, key, scale, is_causal, window, softcap, mask)
    with on_device_of(query):
        if kernels == "hopper":
            from sharpmax.torch.kernels.hopper import tempered as hopper

            assert maximum is not None
            return hopper.tempered(scores, value, beta, maximum)
        from sharpmax.torch.kernels import tempered as triton

        return triton.tempered(scores, value, beta)


@tempered.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    del key
    out = value.new_empty((*query.shape[:3], value.shape[3]))
    return out, query.new_empty(query.shape[:3], dtype=torch.float32)


@operator("sharpmax::tempered_backward")
def tempered_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    mask: Tensor | None,
    scale: float,
    is_causal: bool,
    window: int | None,
    softcap: float | None,
    kernels: str,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients by the query, the key, the value and β."""
    if kernels == "hopper":
        with on_device_of(query):
            return _tempered_backward_by_cudnn(
                query, key, value, beta, scale, is_causal, out, lse, grad_out
            )
    from sharpmax.torch.kernels import tempered_backward as triton

    scores = Scores(query, key, scale, is_causal, window, softcap, mask)
    with on_device_of(query):
        return triton.tempered_backward(scores, value, beta, out, lse, grad_out)


def _tempered_backward_by_cudnn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    scale: float,
    is_causal: bool,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients by cuDNN's own backward pass, of attention on β·q."""
    from sharpmax.torch.kernels.scaling import scaled, unscaled

    unused = torch.empty((), dtype=torch.int64, device=query.device)
    grad_scaled, grad_key, grad_value = aten._scaled_dot_product_cudnn_attention_backward(
        grad_out,
        scaled(query, beta),
        key,
        value,
        out,
        lse[..., None],
        unused,
        unused,
        None,
        None,
        None,
        query.shape[2],
        key.shape[2],
        0.0,
        is_causal,
        scale=scale,
    )
    grad_query, grad_beta = unscaled(grad_scaled, query, beta)
    return grad_query, grad_key, grad_value, grad_beta


@tempered_backward.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, *_: object
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad_query, grad_key, grad_value, grad_beta = (
        x.new_empty(x.shape) for x in (query, key, value, beta)
    )
    return grad_query, grad_key, grad_value, grad_beta


def _keep_tempered(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, beta, _, mask, *ctx.settings = inputs
    out, lse = output
    ctx.save_for_backward(query, key, value, beta, mask, out, lse)
    ctx.mark_non_differentiable(lse)


def _backward_tempered(ctx: Any, grad_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    query, key, value, beta, mask, out, lse = ctx.saved_tensors
    gradients = tempered_backward(query, key, value, beta, mask, *ctx.settings, out, lse, grad_out)
    return *gradients, *[None] * 7


tempered.register_autograd(_backward_tempered, setup_context=_keep_tempered)


@operator("sharpmax::polynomial")
def polynomial(
    entropy: Tensor, coefficients: list[float], threshold: float, minimum: float, end: float
) -> tuple[Tensor, Tensor]:
    """Return a polynomial policy's β and dβ/dH of every row."""
    from sharpmax.torch.kernels import polynomial as triton

    with on_device_of(entropy):
        return triton.polynomial(entropy, coefficients, threshold, minimum, end)


@polynomial.register_fake
def _(entropy: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return entropy.new_empty(entropy.shape), entropy.new_empty(entropy.shape)


def _keep_slope(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    del inputs
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _backward_polynomial(ctx: Any, grad_beta: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    (slope,) = ctx.saved_tensors
    return grad_beta * slope, None, None, None, None


polynomial.register_autograd(_backward_polynomial, setup_context=_keep_slope)


@operator("sharpmax::ladder")
def ladder(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    scale: float,
    is_causal: bool,
    window: int | None,
    softcap: float | None,
    beta: Tensor,
    rungs: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the entropies at β, 2β, 4β, …, their slope at β, and the largest logits."""
    from sharpmax.torch.kernels import ladder as triton

    scores = Scores(query, key, scale, is_causal, window, softcap, mask)
    with on_device_of(query):
        return triton.ladder(scores, beta, rungs)
