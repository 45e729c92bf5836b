"""Attention for Flax: what its multi-head layers take as `attention_fn`.

flax.linen.MultiHeadDotProductAttention(num_heads=8, attention_fn=attention_fn(PAPER))
flax.nnx.MultiHeadAttention(8, 64, attention_fn=attention_fn(PAPER), rngs=rngs)
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

from sharpmax.jax.arguments import require_policy_of_jax
from sharpmax.jax.attention import attention
from sharpmax.jax.scores import Scores, weighted
from sharpmax.policies import PAPER

if TYPE_CHECKING:
    from sharpmax.policy import Policy


def attention_fn(policy: Policy = PAPER, *, implementation: str | None = None) -> Attention:
    """Return attention under a policy, as Flax calls its `dot_product_attention`.

    The layers' masks, dropout, dtype and precision are honoured. Weights that are to be dropped,
    or sown (`sow_weights`), must be at hand, so in these cases all of them are held at once, as
    Flax itself does. A query that sees no key gives zeros.

    Args:
        policy: Chooses β for every row.
        implementation: As in `sharpmax.jax.attention`.
    """
    require_policy_of_jax(policy)
    return Attention(policy, implementation)


@dataclass(frozen=True)
class Attention:
    """Attention under a policy; equal settings are equal, so that layers with them are too."""

    policy: Policy
    implementation: str | None = None

    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None = None,
        mask: Array | None = None,
        broadcast_dropout: bool = True,
        dropout_rng: Array | None = None,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: Any = None,
        precision: Any = None,
        module: Any = None,
        is_causal: bool = False,
    ) -> Array:
        """Return attention's result, as `flax.linen.dot_product_attention` is called."""
        lead = query.shape[:-3]
        dtype = jnp.result_type(query, key, value) if dtype is None else dtype
        query, key, value = (
            array.astype(dtype).reshape(-1, *array.shape[-3:]) for array in (query, key, value)
        )
        bias = _by_batch(bias, lead)
        mask = None if mask is None else _by_batch(mask.astype(bool), lead)
        drops = dropout_rate > 0 and not deterministic
        with _precision(precision):
            if not drops and module is None:
                out = attention(
                    query,
                    key,
                    value,
                    bias,
                    mask,
                    is_causal=is_causal,
                    policy=self.policy,
                    implementation=self.implementation,
                )
                assert isinstance(out, jax.Array)
                return out.reshape(*lead, *out.shape[1:])
            rows = Scores.of(
                query,
                key,
                bias,
                mask,
                scale=None,
                is_causal=is_causal,
                query_seq_lengths=None,
                key_value_seq_lengths=None,
                local_window_size=None,
            ).rows()
            weights = rows.softmax(self.policy(rows))
            weights = weights.reshape(*lead, *weights.shape[1:])
            if module is not None:
                module.sow(*_place_to_sow(module), weights)
            if drops:
                weights = _dropped(weights, dropout_rng, dropout_rate, broadcast_dropout)
            out = weighted(weights.reshape(-1, *weights.shape[-3:]), value)
        return out.reshape(*lead, *out.shape[1:])


def _dropped(weights: Array, rng: Array | None, rate: float, broadcast: bool) -> Array:
    """Return weights of which some are dropped, the same for all heads and batches if broadcast."""
    if rng is None:
        raise ValueError("dropout_rng must be given where weights are dropped")
    shape = (1,) * (weights.ndim - 2) + weights.shape[-2:] if broadcast else weights.shape
    kept = jax.random.bernoulli(rng, 1 - rate, shape)
    return weights * kept.astype(weights.dtype) / (1 - rate)


def _by_batch(array: Array | None, lead: tuple[int, ...]) -> Array | None:
    """Return (…, heads, queries, keys) with one axis for all batches."""
    if array is None:
        return None
    array = array.reshape((1,) * max(0, 3 - array.ndim) + array.shape)
    if math.prod(array.shape[:-3]) == 1:
        return array.reshape(1, *array.shape[-3:])
    return jnp.broadcast_to(array, (*lead, *array.shape[-3:])).reshape(-1, *array.shape[-3:])


def _precision(precision: Any) -> Any:
    """Return a context in which products have a precision, given as JAX takes it."""
    if isinstance(precision, tuple | list) and len(set(precision)) == 1:
        precision = precision[0]
    if precision is None:
        return contextlib.nullcontext()
    if isinstance(precision, jax.lax.DotAlgorithmPreset):
        precision = precision.name
    elif isinstance(precision, jax.lax.Precision):
        precision = precision.name.lower()
    if not isinstance(precision, str):
        raise NotImplementedError(
            f"precision must be one for both operands, a name or a preset, got {precision}"
        )
    return jax.default_matmul_precision(precision)


def _place_to_sow(module: Any) -> tuple[Any, str]:
    """Return where Flax keeps weights: a collection's name in linen, a kind of variable in nnx."""
    from flax import nnx

    where = nnx.Intermediate if isinstance(module, nnx.Module) else "intermediates"
    return where, "attention_weights"
