"""Keras 3: multi-head attention whose temperature a policy chooses row by row.

On the backends whose attention sharpmax has: JAX and PyTorch.
"""

from __future__ import annotations

from typing import Any

try:
    import keras  # type: ignore[import-untyped]
except ImportError as error:
    raise ImportError(
        f"sharpmax.keras needs {error.name}, which comes with: pip install 'sharpmax[keras]'",
        name=error.name,
    ) from None

from sharpmax.policies import PAPER
from sharpmax.policy import Policy, require_policy
from sharpmax.softmax import softmax


@keras.saving.register_keras_serializable(package="sharpmax")
class MultiHeadAttention(keras.layers.MultiHeadAttention):  # type: ignore[misc]
    """`keras.layers.MultiHeadAttention` with a policy; all its other arguments are the same.

    Weights that are to be dropped or returned must be at hand. Otherwise no logits are held; but
    Keras itself makes a mask of all pairs where a call is causal.
    """

    def __init__(self, *args: Any, policy: Policy = PAPER, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if keras.backend.backend() not in ("jax", "torch"):
            raise ValueError(
                "sharpmax.keras works on the backends jax and torch, got "
                f"{keras.backend.backend()}: set KERAS_BACKEND"
            )
        require_policy(policy)
        self.policy = policy

    def get_config(self) -> dict[str, Any]:
        """Return what a copy is made from, the policy among it."""
        return {**super().get_config(), "policy": self.policy.to_dict()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> MultiHeadAttention:
        """Return a copy from its configuration."""
        whole = {**config, "policy": Policy.from_dict(config["policy"])}
        found: MultiHeadAttention = super().from_config(whole)
        return found

    def _compute_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> tuple[Any, Any]:
        if len(query.shape) != 4:
            raise ValueError("attention_axes must be one axis for a policy to sharpen along it")
        mask = attention_mask
        if mask is not None:  # (batch, queries, keys), or with heads before the queries
            mask = keras.ops.cast(mask, "bool")
            while len(mask.shape) < 4:
                mask = keras.ops.expand_dims(mask, -3)
        elif use_causal_mask:
            queries, keys = keras.ops.arange(query.shape[1]), keras.ops.arange(key.shape[1])
            mask = (keys <= queries[:, None])[None, None]
        drops = bool(training) and self._dropout > 0
        if not drops and not return_attention_scores:
            return self._fused(query, key, value, mask), None
        logits = keras.ops.einsum("bthd,bshd->bhts", query, key) * self._inverse_sqrt_key_dim
        where = None if mask is None else keras.ops.broadcast_to(mask, logits.shape)
        weights: Any = softmax(logits, self.policy, where=where)
        kept = self._dropout_layer(weights, training=training) if drops else weights
        return keras.ops.einsum("bhts,bshd->bthd", kept, value), weights

    def _fused(self, query: Any, key: Any, value: Any, mask: Any) -> Any:
        settings: dict[str, Any] = {"mask": mask, "policy": self.policy}
        settings["scale"] = float(self._inverse_sqrt_key_dim)
        if keras.backend.backend() == "jax":
            from sharpmax.jax import attention

            return attention(query, key, value, **settings)
        from sharpmax.torch import attention as torch_attention

        heads_first = [array.transpose(1, 2) for array in (query, key, value)]
        out: Any = torch_attention(*heads_first, **settings)
        return out.transpose(1, 2)
