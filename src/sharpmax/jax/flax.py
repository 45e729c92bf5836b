"""Attention for Flax: what its multi-head layers take as `attention_fn`.

flax.linen.MultiHeadDotProductAttention(num_heads=8, attention_fn=attention_fn(PAPER))
flax.nnx.MultiHeadAttention(8, 64, attention_fn=attention_fn(PAPER), rngs=rngs)
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from sharpmax.jax.attention import attention
from sharpmax.jax.scores import Scores, weighted
from sharpmax.policies import PAPER
from sharpmax.policy import Policy, require_policy


def attention_fn(
    policy: Policy = PAPER, *, implementation: str | None = None
) -> Callable[..., Array]:
    """Return attention under a policy, as Flax calls its `dot_product_attention`.

    The layers' masks, dropout, dtype and precision are honoured. Weights that are to be dropped,
    or sown (`sow_weights`), must be at hand, so in these cases all of them are held at once, as
    Flax itself does.

    Args:
        policy: Chooses β for every row.
        implementation: As in `sharpmax.jax.attention`.
    """
    require_policy(policy)

    def attend(
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
                    policy=policy,
                    implementation=implementation,
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
            weights = rows.softmax(policy(rows))
            weights = weights.reshape(*lead, *weights.shape[1:])
            if module is not None:
                module.sow(*_place_to_sow(module), weights)
            if drops:
                if dropout_rng is None:
                    raise ValueError("dropout_rng must be given where weights are dropped")
                shape = (1,) * (weights.ndim - 2) + weights.shape[-2:]
                shape = shape if broadcast_dropout else weights.shape
                kept = jax.random.bernoulli(dropout_rng, 1 - dropout_rate, shape)
                weights = weights * kept.astype(weights.dtype) / (1 - dropout_rate)
            out = weighted(weights.reshape(-1, *weights.shape[-3:]), value)
        return out.reshape(*lead, *out.shape[1:])

    return attend


def _by_batch(array: Array | None, lead: tuple[int, ...]) -> Array | None:
    """Return (…, heads, queries, keys) with one axis for all batches."""
    if array is None:
        return None
    array = array.reshape((1,) * max(0, 3 - array.ndim) + array.shape)
    if math.prod(array.shape[:-3]) == 1:
        return array.reshape(1, *array.shape[-3:])
    return jnp.broadcast_to(array, (*lead, *array.shape[-3:])).reshape(-1, *array.shape[-3:])


def _precision(precision: Any) -> Any:
    if precision is None:
        return contextlib.nullcontext()
    if isinstance(precision, tuple):
        raise NotImplementedError(f"precision must be the same for both operands, got {precision}")
    if isinstance(precision, jax.lax.Precision):
        precision = precision.name.lower()
    return jax.default_matmul_precision(precision)


def _place_to_sow(module: Any) -> tuple[Any, str]:
    """Return where Flax keeps weights: a collection's name in linen, a kind of variable in nnx."""
    from flax import nnx

    where = nnx.Intermediate if isinstance(module, nnx.Module) else "intermediates"
    return where, "attention_weights"
