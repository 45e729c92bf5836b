"""What a layer of a transformers model asks of attention, in sharpmax's terms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import dropout as dropped
from torch.nn.functional import pad

from sharpmax.hf.branches import SLIDING, BranchMask
from sharpmax.hf.masks import MARK, KeyMask
from sharpmax.policies import BetaAlone
from sharpmax.rows import LogitRows
from sharpmax.softmax import weights_of
from sharpmax.torch.attention import attention
from sharpmax.torch.autocast import as_under_autocast
from sharpmax.torch.scores import Scores

if TYPE_CHECKING:
    from sharpmax.policy import Policy

WIDTH_STEP = 8
"""Widths that are multiples of it have the fastest kernels."""


@dataclass(frozen=True)
class Request:
    """A layer's queries, keys and values, and which logits are made of them.

    Attributes:
        query: Of shape (batch, heads, queries, width).
        key: Of shape (batch, key heads, keys, width).
        value: Of shape (batch, key heads, keys, value width).
        mask: True where a query sees a key, or None.
        is_causal: Whether no query sees a key after it.
        window: How many keys back a query sees, or None.
        softcap: What bounds the logits, or None.
        scale: What the dot products are multiplied by.
        has_sink: Whether the first key is a sink: a logit without a token, whose value is 0.
        stem: How many queries come before those that the mask is of: they are causal, in the
            window, and the window is theirs alone. None where the mask is of all.
        is_sliding: Whether the layer looks back through a window, whatever is left of its cache.
            It loses sight of the first token, and so has no sink to set apart.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    is_causal: bool
    window: int | None
    softcap: float | None
    scale: float
    has_sink: bool = False
    stem: int | None = None
    is_sliding: bool = False

    @classmethod
    def of(
        cls,
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        scaling: float | None = None,
        is_causal: bool | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        position_bias: Tensor | None = None,
        indices: Tensor | None = None,
        block_indices: Tensor | None = None,
        sliding_window: int | None = None,
        **others: Any,
    ) -> Request:
        """Take what transformers hands to an attention function, or say what it cannot take.

        What `others` hold is for other kernels, and unread.

        Raises:
            NotImplementedError: If the layer adds numbers to its logits, or chooses its keys.
        """
        del others
        layer = type(module).__name__
        if position_bias is not None:
            raise NotImplementedError(
                f"{layer} adds a position bias to its logits, which sharpmax cannot do"
            )
        if indices is not None or block_indices is not None:
            raise NotImplementedError(
                f"{layer} chooses the keys of every query, which sharpmax cannot follow"
            )
        queries, keys = query.shape[2], key.shape[2]
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = bool(causal) and queries > 1
        window = stem = None
        told = getattr(attention_mask, MARK, None)
        if attention_mask is None:
            if causal and keys > queries:  # a static cache that has just been begun
                key, value = key[:, :, :queries], value[:, :, :queries]
        elif attention_mask.dtype != torch.bool:
            raise NotImplementedError(
                f"{layer} was given a mask of {attention_mask.dtype} to add to its logits: give a "
                "boolean one, True where a token is seen"
            )
        elif isinstance(told, KeyMask):
            window = told.window
            attention_mask = attention_mask if told.is_padded else None
        elif isinstance(told, BranchMask):
            window, stem, causal = told.window, told.stem, False
        else:
            attention_mask, causal = attention_mask[..., :keys], False
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        request = cls(
            query,
            key,
            value,
            attention_mask,
            causal,
            window,
            softcap,
            scale,
            stem=stem,
            is_sliding=window is not None or sliding_window is not None or _slides(module),
        )
        return request if s_aux is None else request._with_sinks(s_aux)

    def scores(self) -> Scores:
        """Return how the logits are made."""
        return Scores.of(self.query, self.key, **self._settings())

    def answered(self, policy: Policy) -> Tensor:
        """Return the attention's output, of shape (batch, heads, queries, value width)."""
        if self.stem is not None:
            return torch.cat([part.answered(policy) for part in self._parts(self.stem)], dim=2)
        policy = self.followed(policy)
        out = attention(self.query, self.key, self.value, policy=policy, **self._settings())
        assert isinstance(out, Tensor)
        return out

    def answered_with_weights(self, policy: Policy, dropout: float) -> tuple[Tensor, Tensor]:
        """Return the output and the weights themselves, all of them held at once."""
        if self.stem is not None:
            raise NotImplementedError("branches have no weights by query and key")
        policy = self.followed(policy)
        out, weights = _with_weights(
            self.query, self.key, self.value, policy, dropout, **self._settings()
        )
        return out, weights[..., 1:] if self.has_sink else weights

    def followed(self, policy: Policy) -> Policy:
        """Return the policy as far as this layer follows it."""
        return BetaAlone(policy) if self.is_sliding and policy.sets_sink_apart else policy

    def _settings(self) -> dict[str, Any]:
        return {
            "mask": self.mask,
            "is_causal": self.is_causal,
            "window": self.window,
            "softcap": self.softcap,
            "scale": self.scale,
        }

    def _parts(self, stem: int) -> tuple[Request, Request]:
        """Return what the stem asks for, and what its branches do."""
        key, value = self.key[:, :, :stem], self.value[:, :, :stem]
        before = replace(
            self,
            query=self.query[:, :, :stem],
            key=key,
            value=value,
            mask=None,
            is_causal=True,
            stem=None,
        )
        return before, replace(self, query=self.query[:, :, stem:], window=None, stem=None)

    def _with_sinks(self, sinks: Tensor) -> Request:
        """Return the same with a key before all others whose logit is the head's sink.

        The query gets one number more, the sink over the scale, and keys a 0 there; the sink's
        key has a 1 there and 0 elsewhere. So it passes through β as every logit does.
        """
        if self.softcap is not None or self.stem is not None:
            what = "sinks behind a softcap" if self.stem is None else "sinks of branches"
            raise NotImplementedError(f"{what} are not supported")
        batch, heads, queries, width = self.query.shape
        wider = -(width + 1) % WIDTH_STEP + 1
        query, key = pad(self.query, (0, wider)), pad(self.key, (0, wider, 1, 0))
        extra = (sinks.to(query) / self.scale).view(1, heads, 1).expand(batch, heads, queries)
        query = torch.cat((query[..., :width], extra[..., None], query[..., width + 1 :]), dim=-1)
        first = torch.zeros_like(key[:, :, :1])
        first[..., width] = 1.0
        key = torch.cat((first, key[:, :, 1:]), dim=2)
        mask, is_causal, window = self.mask, self.is_causal, self.window
        if window is not None:  # the sink is seen from everywhere
            whole = slice(0, queries), slice(0, self.key.shape[2])
            mask, is_causal, window = self.scores().visible(*whole), False, None
        if mask is not None:
            mask = pad(mask, (1, 0), value=True)
        return replace(
            self,
            query=query,
            key=key,
            value=pad(self.value, (0, 0, 1, 0)),
            mask=mask,
            is_causal=is_causal,
            window=window,
            has_sink=True,
        )


def _slides(module: torch.nn.Module) -> bool:
    """Tell whether a layer looks back through a window, by its model's configuration."""
    config: Any = getattr(module, "config", None)
    kinds, place = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    if kinds and isinstance(place, int):
        return bool(kinds[place] == SLIDING)
    return getattr(config, "sliding_window", None) is not None


@as_under_autocast
def _with_weights(
    query: Tensor, key: Tensor, value: Tensor, policy: Policy, dropout: float, **settings: Any
) -> tuple[Tensor, Tensor]:
    """Return softmax(β·logits)·value, and the weights before any of them are dropped."""
    scores = Scores.of(query, key, **settings)
    every, keys = slice(0, query.shape[2]), slice(0, key.shape[2])
    logits, visible = scores.logits(every, keys), scores.visible(every, keys)
    weights = weights_of(LogitRows.of(logits, where=visible), policy).to(query.dtype)
    value = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    return dropped(weights, dropout) @ value, weights
