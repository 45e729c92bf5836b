"""JAX's fused attention by cuDNN: what it can take, and what is made of it.

It never holds the logits, and tells the log-sum-exp of every row. So do the two halves of sharp
attention: with the keys as values it gives Σ p·k, from which the mean logit is scale·q·Σ p·k; and
with β·q as queries it gives the sharpened result.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

from sharpmax.jax.betas import betas
from sharpmax.statistics import RowStatistics

if TYPE_CHECKING:
    from collections.abc import Callable

    from sharpmax.jax.scores import Scores
    from sharpmax.policy import Policy

FEWEST, WIDEST = 2, 256


class Summary(NamedTuple):
    """What is known of a row: its largest logit, its log-sum-exp and its entropy.

    Each is of shape (batch, heads, queries); the largest may be unknown, NaN.
    """

    max: Array
    lse: Array
    entropy: Array


def refusal(scores: Scores, value: Array | None = None, policy: Policy | None = None) -> str | None:
    """Return why cuDNN cannot take a call, or None if it can.

    Without a value and a policy it is a call for the statistics alone.
    """
    reason = refusal_of_device() or refusal_of_scores(scores)
    if reason is None and value is not None and policy is not None:
        reason = refusal_of_policy(scores, value, policy)
    return reason


def refusal_of_device() -> str | None:
    """Return why this device has no such attention, or None if it has."""
    if jax.default_backend() != "gpu":
        return f"needs a GPU, and JAX runs on {jax.default_backend()}"
    try:
        _cudnn()
    except ImportError:
        return f"needs a JAX whose attention by cuDNN is where 0.10 has it, got {jax.__version__}"
    return None


def refusal_of_scores(scores: Scores) -> str | None:
    """Return why no GPU could take these scores, or None."""
    if not isinstance(scores.scale, float):
        return "takes a scale that is a Python number, got one that is traced"
    if min(scores.query.shape[1], scores.key.shape[1]) < FEWEST:
        return f"takes {FEWEST} queries and keys or more"
    if scores.query.dtype not in (jnp.bfloat16, jnp.float16):
        return f"takes bfloat16 and float16, got {scores.query.dtype}"
    if scores.bias is not None:
        return "cannot scale a bias by β"
    if scores.mask is not None:
        return "takes lengths, windows and is_causal, but no mask"
    width = scores.query.shape[3]
    if width % 8 or width > WIDEST:
        return f"takes widths of up to {WIDEST} that are multiples of 8, got {width}"
    if scores.window is not None and scores.window[1] and not scores.is_causal:
        return "takes windows to the left alone unless is_causal"
    if scores.window is not None and scores.query.shape[1] > scores.key.shape[1]:
        return "takes no window where there are more queries than keys"
    return None


def refusal_of_policy(scores: Scores, value: Array, policy: Policy) -> str | None:
    """Return why the policy or the value is not one for cuDNN, or None."""
    name = type(policy).__name__
    if "entropy_at" in policy.reads:
        return f"never holds a row, and {name} reads rows whole"
    if "max" in policy.reads:
        return f"does not tell the largest logits, which {name} reads"
    if value.shape[3] != scores.key.shape[3]:
        return f"takes values as wide as keys, {scores.key.shape[3]}, got {value.shape[3]}"
    return None


def attend(
    scores: Scores,
    value: Array,
    policy: Policy,
    statistics_of: Callable[[Scores], RowStatistics],
) -> tuple[Array, RowStatistics]:
    """Return softmax(β·logits)·value and the statistics, by cuDNN's attention on β·q."""
    statistics = statistics_of(scores)
    beta = jnp.moveaxis(betas(policy, statistics), 1, 2)[..., None]
    sharpened = replace(scores, query=(beta * scores.query).astype(scores.query.dtype))
    out, _ = flash(sharpened, value)
    seen = jnp.moveaxis(statistics.length, 1, 2)[..., None] > 0
    return jnp.where(seen, out, jnp.zeros_like(out)), statistics


def flash(scores: Scores, value: Array) -> tuple[Array, Array]:
    """Return cuDNN's attention and the log-sum-exp of its logits, (batch, heads, queries).

    `jax.nn.dot_product_attention` rounds the latter to the dtype of the result, in which an entropy
    would drown; so its own part for cuDNN is called. That takes gradients of even lengths only.
    """
    cudnn = _cudnn()
    sizes = scores.query.shape[1], scores.key.shape[1]
    lengths: tuple[Array | None, ...] = (scores.query_lengths, scores.key_lengths)
    odd = any(size % 2 for size in sizes)
    padded = odd or any(given is not None for given in lengths)
    if padded:
        known = next((given for given in lengths if given is not None), None)
        like = jnp.zeros(scores.query.shape[0], jnp.int32) if known is None else 0 * known
        lengths = tuple(
            jnp.clip(like + size if given is None else given, 0, size).astype(jnp.int32)
            for given, size in zip(lengths, sizes, strict=True)
        )
    causal = scores.is_causal or scores.window is not None
    kinds = {
        (False, False): cudnn.MaskType.NO_MASK,
        (False, True): cudnn.MaskType.CAUSAL,
        (True, False): cudnn.MaskType.PADDING,
        (True, True): cudnn.MaskType.PADDING_CAUSAL,
    }
    out, lse = cudnn.dot_product_attention(
        *(_even(array) for array in (scores.query, scores.key, value)),
        q_seqlen=lengths[0],
        kv_seqlen=lengths[1],
        scale=scores.scale,
        mask_type=kinds[padded, causal],
        sliding_window_length=None if scores.window is None else scores.window[0] + 1,
        return_residual=True,
    )
    batch, heads, queries = scores.shape
    return out[:, :queries], lse.reshape(batch, heads, -1)[:, :, :queries]


def _cudnn() -> Any:
    from jax._src.cudnn import fused_attention_stablehlo

    return fused_attention_stablehlo


def _even(array: Array) -> Array:
    """Return (batch, length, heads, width) with an even length."""
    odd = array.shape[1] % 2
    return jnp.pad(array, ((0, 0), (0, 1), (0, 0), (0, 0))) if odd else array


def statistics(scores: Scores, summarise: Callable[[Scores], Summary]) -> RowStatistics:
    """Return the statistics of every row, differentiable however they were summarised."""
    rest = replace(scores, query=None, key=None)  # type: ignore[arg-type]
    summary = _summary(summarise, scores.query, scores.key, rest)
    length = jnp.broadcast_to(scores.lengths(), scores.shape).astype(summary.lse.dtype)
    seen = length > 0
    return RowStatistics(
        max=jnp.where(seen, summary.max, -math.inf),
        lse=jnp.where(seen, summary.lse, -math.inf),
        entropy=jnp.where(seen, summary.entropy, 0.0),
        length=length,
    )


def by_identity(scores: Scores) -> Summary:
    """Return the summary of every row from attention over the keys themselves."""
    keys, lse = flash(scores, scores.key)
    return _from_keys(scores, keys, lse)


def _from_keys(scores: Scores, keys: Array, lse: Array) -> Summary:
    mean = scores.scale * jnp.einsum(
        "btnh,btnh->bnt", scores.query, keys, preferred_element_type=jnp.float32
    )
    return Summary(jnp.full_like(lse, math.nan), lse, jnp.maximum(lse - mean, 0.0))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _summary(
    summarise: Callable[[Scores], Summary], query: Array, key: Array, rest: Scores
) -> Summary:
    return summarise(replace(rest, query=query, key=key))


def _forward(_: Any, query: Any, key: Any, rest: Any) -> Any:
    """Summarise by the identity, whose parts the gradient needs."""
    query, key, rest = jax.tree.map(lambda given: given.value, (query, key, rest))

    def attention(query: Array, key: Array, value: Array) -> tuple[Array, Array]:
        return flash(replace(rest, query=query, key=key), value)

    (keys, lse), pull = jax.vjp(attention, query, key, key)
    scores = replace(rest, query=query, key=key)
    seen = jnp.broadcast_to(scores.lengths(), scores.shape) > 0
    keys = jnp.where(jnp.moveaxis(seen, 1, 2)[..., None], keys, jnp.zeros_like(keys))
    return _from_keys(scores, keys, lse), (query, keys, pull, rest.scale)


def _backward(_: Any, kept: Any, cotangents: Any) -> Any:
    """Return the gradient: with G = ∂L/∂logits, that of query is scale·G·k, of key scale·Gᵀ·q.

    ∂H/∂s = −p·(s − mean) is what attention over the keys sends to its logits for the cotangent
    −scale·q of its result. ∂lse/∂s = p is what it sends to its values.
    """
    query, keys, pull, scale = kept
    _, of_lse, of_entropy = cotangents

    def pulled(weight: Array) -> Any:
        by_row = scale * jnp.moveaxis(weight, 1, 2)[..., None] * query
        return pull((by_row.astype(query.dtype), jnp.zeros_like(weight)))

    to_query = to_key = None
    if not isinstance(of_entropy, SymbolicZero):
        to_query, to_key, _ = pulled(-of_entropy)
    if not isinstance(of_lse, SymbolicZero):
        _, _, to_value = pulled(of_lse)
        direct = (scale * jnp.moveaxis(of_lse, 1, 2)[..., None] * keys).astype(query.dtype)
        to_query = direct if to_query is None else to_query + direct
        to_key = to_value if to_key is None else to_key + to_value
    return to_query, to_key, None


_summary.defvjp(_forward, _backward, symbolic_zeros=True)
