"""Attention with a temperature for every row, as `jax.nn.dot_product_attention` is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from sharpmax.jax import sharded
from sharpmax.jax.arguments import require_like, require_policy_of_jax, sequences_of
from sharpmax.jax.row_statistics import implementation_of, require_chunked
from sharpmax.jax.scores import Scores
from sharpmax.policies import PAPER

if TYPE_CHECKING:
    from jax import Array

    from sharpmax.policy import Policy
    from sharpmax.statistics import RowStatistics


def attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | Array | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    policy: Policy = PAPER,
    implementation: str | None = None,
    axis_name: str | None = None,
    return_statistics: bool = False,
) -> Array | tuple[Array, RowStatistics]:
    """Return softmax(β·logits)·value, each row's β chosen by the policy.

    With `Fixed(1.0)` it equals `jax.nn.dot_product_attention`, but for rows that see no key: they
    give zeros. Query i stands at key i, also where there are more keys than queries.

    Args:
        query: Of shape (batch, queries, heads, width); the batch may be left out, and is then
            missing in what is returned.
        key: Of shape (batch, keys, key heads, width); the heads are a multiple of the key heads.
        value: Of shape (batch, keys, key heads, value width).
        bias: Added to the logits, before β; it broadcasts to (batch, heads, queries, keys). −inf
            and the most negative number of its own dtype hide a key; −1e9 does not.
        mask: True where a query sees a key, likewise.
        scale: What the dot products are multiplied by; 1/√width if None. One that is traced, such
            as one in training, is for "chunked" and "reference".
        is_causal: Whether a query sees no key after its own.
        query_seq_lengths: How many queries of each sequence count; the others give zeros.
        key_value_seq_lengths: How many keys of each sequence are seen.
        local_window_size: How many keys to the left and to the right are seen besides its own.
        policy: Chooses β for every row.
        implementation: "pallas" (a kernel for the statistics, then cuDNN's attention), "cudnn"
            (both by cuDNN's) or "chunked" (a few queries at a time, on any device), all three in
            memory linear in the length, or "reference" (all logits at once). None chooses the
            first of them that can take the call.
        axis_name: Inside `shard_map`, the mesh axis over which keys and values are sharded, in
            order, and the key axis of bias and mask with them; queries are whole on every device,
            and so is the result.
        return_statistics: Whether to return the row statistics of the plain logits as well, of
            shape (batch, heads, queries).

    Raises:
        ValueError: If a shape does not fit; told when the function is traced.
        NotImplementedError: If the implementation that was named cannot take the call, and why.
    """
    require_policy_of_jax(policy)
    scores = Scores.of(
        query,
        key,
        bias,
        mask,
        scale=scale,
        is_causal=is_causal,
        query_seq_lengths=query_seq_lengths,
        key_value_seq_lengths=key_value_seq_lengths,
        local_window_size=local_window_size,
    )
    value = sequences_of("value", value)
    if value.shape[1:3] != scores.key.shape[1:3]:
        raise ValueError(
            f"value must have shape (batch, {scores.key.shape[1]}, {scores.key.shape[2]}, width) "
            f"like key, got {value.shape}"
        )
    require_like("value", value, scores.query)
    if axis_name is None:
        chosen = implementation_of(implementation, scores, value, policy)
        out, statistics = chosen.attend(scores, value, policy)
    else:
        require_chunked(implementation)
        out, statistics = sharded.attend(scores, value, policy, axis_name)
    if jnp.ndim(query) == 3:
        out, statistics = jax.tree.map(lambda array: array[0], (out, statistics))
    return (out, statistics) if return_statistics else out
