"""Keras 3: multi-head attention whose temperature a policy chooses row by row.

On the backends whose attention sharpmax has: JAX and PyTorch.
"""

from __future__ import annotations

from typing import Any

try:
    import keras  # type: ignore[import-untyped]
except ImportError as error:
    message = "sharpmax.keras needs keras, which comes with: pip install 'sharpmax[keras]'"
    if error.name != "keras":
        message = (
            f"Keras's backend needs {error.name}, which is not installed: set KERAS_BACKEND to jax "
            "or torch, whichever is, before keras is imported"
        )
    raise ImportError(message, name=error.name) from None

from sharpmax.policies import PAPER
from sharpmax.policy import Policy, require_policy
from sharpmax.softmax import softmax


@keras.saving.register_keras_serializable(package="sharpmax")
class MultiHeadAttention(keras.layers.MultiHeadAttention):  # type: ignore[misc]
    """`keras.layers.MultiHeadAttention` with a policy; all its other arguments are the same.

    Weights that are to be dropped or returned must be at hand. Otherwise no logits are held; but
    Keras itself makes a mask of all pairs where a call is causal. A query that sees no key gives
    zeros. Inputs have three axes, (batch, length, width).
    """

    def __init__(self, *args: Any, policy: Policy = PAPER, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if self._flash_attention:
            raise ValueError(
                f"flash_attention must be None or False, got {self._flash_attention}: sharpmax "
                "chooses its kernels by itself"
            )
        if keras.backend.backend() not in ("jax", "torch"):
            raise ValueError(
                f"Keras's backend must be jax or torch, got {keras.backend.backend()}: set "
                "KERAS_BACKEND to one of them before keras is imported"
            )
        require_policy(policy)
        self.policy = policy

    def get_config(self) -> dict[str, Any]:
        """Return what a copy is made from, the policy among it."""
        return {**super().get_config(), "policy": self.policy.to_dict()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> MultiHeadAttention:
        """Return a copy from its configuration; the policy of Keras's own layer is `PAPER`."""
        policy = Policy.from_dict(config["policy"]) if "policy" in config else PAPER
        whole = {**config, "policy": policy}
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
            raise ValueError(
                "inputs must have three axes, (batch, length, width), for a policy to sharpen, "
                f"got {len(query.shape) - 1}"
            )
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
        # Half precisions overflow in q·k sooner than in its scaled form.
        query = query * keras.ops.cast(self._inverse_sqrt_key_dim, query.dtype)
        logits = keras.ops.einsum("bthd,bshd->bhts", query, key)
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
