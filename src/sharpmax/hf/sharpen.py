"""Sharpen a model: choose the temperature of every attention row, in place of its attention.

transformers looks its attention up by name. `sharpen` registers one more, with the mask that
belongs to it, and tells the model to use it; undoing takes both away again.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from sharpmax.hf.masks import visible_keys
from sharpmax.hf.request import Request
from sharpmax.per_head import PerHead
from sharpmax.policies import PAPER, BetaAlone, ConstantRows
from sharpmax.policy import Policy, require_policy

try:
    from transformers.utils.output_capturing import _active_collector
except ImportError:  # another version; most models pass `output_attentions` on
    _active_collector = None  # type: ignore[assignment]

NAME = "sharpmax-"
"""What the attention of a sharpened model is called, with a number behind it."""
_numbers = itertools.count()

Places: TypeAlias = weakref.WeakKeyDictionary[torch.nn.Module, int]
AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]


def sharpen(model: PreTrainedModel, policy: Policy = PAPER) -> Sharpened:
    """Let a policy choose the temperature of every row of a model's attention.

    It holds from now on, until `undo()` is called or a `with` block ends:

        with sharpen(model, policy):
            model.generate(...)

    Args:
        model: A model whose attention goes through transformers' attention interface.
        policy: The same for all layers, or a `PerHead` of shape (heads,) or (layers, heads).

    Raises:
        ValueError: If the model does not go through the interface, or the policy is for a model
            of another shape.
    """
    require_interface(model)
    require_policy(policy)
    return Sharpened(model, attention_by(model, policy))


class Sharpened:
    """A model with another attention than its own, until `undo`."""

    def __init__(self, model: PreTrainedModel, function: AttentionFunction) -> None:
        self.model = model
        self.name = f"{NAME}{next(_numbers)}"
        self._before = _implementations(model)
        # From device to device a mask travels as a copy, which would lose what it carries.
        devices = {parameter.device for parameter in model.parameters()}
        AttentionInterface.register(self.name, function)
        AttentionMaskInterface.register(self.name, visible_keys if len(devices) < 2 else sdpa_mask)
        try:
            model.set_attn_implementation(self.name)
        except BaseException:
            self._restore()
            raise

    def undo(self) -> None:
        """Give the model back the attention that it had; a second time does nothing.

        Raises:
            RuntimeError: If the model's attention was changed again since. Then nothing is done.
        """
        if self.name not in AttentionInterface._global_mapping:
            return
        if self.model.config._attn_implementation != self.name:
            raise RuntimeError(
                f"the model's attention is {self.model.config._attn_implementation!r} by now: undo "
                "what was done to it later first"
            )
        self._restore()

    def _restore(self) -> None:
        """Undo wherever nobody else has changed anything since."""
        for config, name in self._before:
            if config._attn_implementation == self.name:
                config._attn_implementation_internal = name
        AttentionInterface._global_mapping.pop(self.name, None)
        AttentionMaskInterface._global_mapping.pop(self.name, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()


def is_sharpened(model: PreTrainedModel) -> bool:
    """Tell whether a model's attention is that of a policy."""
    return str(model.config._attn_implementation).startswith(NAME)


def layers_and_heads(model: PreTrainedModel) -> tuple[int, int]:
    """Return how many layers of attention a model has, and how many heads each of them."""
    config = model.config.get_text_config()
    return config.num_hidden_layers, config.num_attention_heads


def context_of(model: PreTrainedModel) -> float:
    """Return how many tokens a model can read; infinity where it does not tell."""
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return math.inf if most is None else most


def layer_of(module: torch.nn.Module, places: Places) -> int:
    """Return which layer an attention module belongs to."""
    index = getattr(module, "layer_idx", None)
    if index is None and module not in places:
        raise ValueError(
            f"{type(module).__name__} does not tell its layer: a copy of a sharpened model must be "
            "sharpened by itself"
        )
    return places[module] if index is None else index


def places_of(model: PreTrainedModel) -> Places:
    """Return the layer of each module that does not know it: the first number of its path."""
    places: Places = weakref.WeakKeyDictionary()
    for path, module in model.named_modules():
        numbers = [part for part in path.split(".") if part.isdigit()]
        if numbers and getattr(module, "layer_idx", None) is None:
            places[module] = int(numbers[0])
    return places


def attention_by(model: PreTrainedModel, policy: Policy) -> AttentionFunction:
    """Return the function that transformers calls in every layer."""
    require_fit(model, policy)
    layers, _ = layers_and_heads(model)
    places = places_of(model)

    def policy_of(layer: int, device: torch.device) -> Policy:
        own = policy.layer(layer)
        held = _on(device, own)  # whose numbers, as arrays, might be anything
        return held if own.sets_sink_apart == held.sets_sink_apart else BetaAlone(held)

    # A layer's number is not asked for in vain: compiled layers would be compiled one by one.
    differs = policy.layer(0) is not policy
    # Numbers by head go to their device once, and not at every call.
    devices = {parameter.device for parameter in model.parameters()}
    policies = {(i, device): policy_of(i, device) for i in range(layers) for device in devices}

    def sharpened(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        output_attentions: bool | None = None,
        **asked: Any,
    ) -> tuple[Tensor, Tensor | None]:
        request = Request.of(module, query, key, value, attention_mask, **asked)
        place = layer_of(module, places) if differs else 0, query.device
        chosen = policies[place] if place in policies else policy_of(*place)
        weights = None
        if dropout or output_attentions or _weights_are_collected(module):
            out, weights = request.answered_with_weights(chosen, dropout)
        else:
            out = request.answered(chosen)
        return out.transpose(1, 2).contiguous(), weights

    # In training, plain causal attention is compiled with what is around it. Other passes go by
    # the length or the layer, and would be compiled anew for every one.
    goes_apart = _heads_of(policy) is not None or bool(policy.reads & {"entropy_at", "max"})
    uncompiled = torch.compiler.disable(sharpened)  # type: ignore[no-untyped-call]

    def answered(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **asked: Any,
    ) -> Any:
        is_plain = attention_mask is None and asked.get("softcap") is None and not goes_apart
        call = sharpened if is_plain or not module.training else uncompiled
        return call(module, query, key, value, attention_mask, **asked)

    return answered


def _heads_of(policy: Policy) -> PerHead | None:
    """Return the policy by head that a policy is, or that it holds constant."""
    if isinstance(policy, ConstantRows):
        return _heads_of(policy.base)
    return policy if isinstance(policy, PerHead) else None


def _on(device: torch.device, policy: Policy) -> Policy:
    """Return the policy with its numbers by head on a device."""
    if isinstance(policy, ConstantRows):
        base = _on(device, policy.base)
        return policy if base is policy.base else replace(policy, base=base)
    if isinstance(policy, PerHead):
        return policy.with_arrays(lambda x: torch.as_tensor(x, device=device))
    return policy


def watched_by(
    model: PreTrainedModel, policy: Policy, look: Callable[[int, Request], None]
) -> AttentionFunction:
    """Return an attention function that shows every layer's request before it answers."""
    answered, places = attention_by(model, policy), places_of(model)

    def watched(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **asked: Any,
    ) -> tuple[Tensor, Tensor | None]:
        request = Request.of(module, query, key, value, attention_mask, **asked)
        look(layer_of(module, places), request)
        return answered(module, query, key, value, attention_mask, **asked)

    return watched


def _weights_are_collected(module: torch.nn.Module) -> bool:
    """Tell whether the caller wants weights: some models do not hand the wish down."""
    if getattr(module.config, "output_attentions", False):
        return True
    if _active_collector is None or torch.compiler.is_compiling():
        return False
    collected: Any = _active_collector.get()  # type: ignore[no-untyped-call]
    return "attentions" in (collected or ())


def require_interface(model: object) -> None:
    """Raise an error unless the model's attention can be replaced."""
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"model must be a transformers model, got {type(model).__name__}")
    if not model._can_set_attn_implementation():
        raise ValueError(
            f"{type(model).__name__} does not go through transformers' attention interface, by "
            "which alone its attention can be replaced"
        )
    if getattr(model.config.get_text_config(), "num_attention_heads", None) is None:
        raise ValueError(f"{type(model).__name__} has no attention heads")


def require_fit(model: PreTrainedModel, policy: Policy) -> None:
    """Raise a ValueError if the policy differs by head, and the model has other heads."""
    by_head = _heads_of(policy)
    if by_head is None:
        return
    name, config = type(model).__name__, model.config
    layers, heads = layers_and_heads(model)
    if config.is_encoder_decoder or config.get_text_config() is not config:
        raise ValueError(
            f"policy differs by head, and {name} has several parts with heads of their own: "
            "sharpen one of them, such as its language model"
        )
    if by_head.shape not in ((heads,), (layers, heads)):
        raise ValueError(
            f"policy is for {' layers of '.join(map(str, by_head.shape))} heads, and {name} has "
            f"{layers} layers of {heads}"
        )


def _implementations(model: PreTrainedModel) -> list[tuple[Any, str | None]]:
    """Return every config of the model and its parts, with the name of its attention."""
    open_ = [m.config for m in model.modules() if isinstance(m, PreTrainedModel)]
    configs: dict[int, Any] = {}
    while open_:
        config = open_.pop()
        if id(config) not in configs:
            configs[id(config)] = config
            parts = [getattr(config, name, None) for name in config.sub_configs]
            open_ += [part for part in parts if part is not None]
    return [(config, config._attn_implementation) for config in configs.values()]
