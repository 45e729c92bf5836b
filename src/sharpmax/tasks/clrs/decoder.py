"""Decoders of Gemma's architecture to train from scratch, sized by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers import GemmaConfig, GemmaForCausalLM

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Shape:
    """The shape of a decoder.

    Attributes:
        layers: Of attention and feed-forward.
        heads: Of attention.
        width: Of each head; all heads together are as wide as the model.
    """

    layers: int
    heads: int
    width: int


DECODERS = {
    "tiny": Shape(2, 2, 64),
    "small": Shape(4, 4, 64),
    "medium": Shape(8, 6, 64),
}
"""0.5, 4 and 19 million weights."""
CONTEXT = 8192
"""Positions are told by rotation, so that a decoder reads on beyond what it was trained on."""
WIDER = 4
"""How much wider than the model its feed-forward layers are."""


def decoder(name: str, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> GemmaForCausalLM:
    """Return a decoder with random weights, the same for the same seed.

    Raises:
        ValueError: If there is none of that name.
    """
    if name not in DECODERS:
        raise ValueError(f"decoder must be one of {', '.join(DECODERS)}, got {name!r}")
    shape = DECODERS[name]
    wide = shape.heads * shape.width
    config = GemmaConfig(
        vocab_size=len(tokenizer),
        hidden_size=wide,
        intermediate_size=WIDER * wide,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.width,
        max_position_embeddings=CONTEXT,
        initializer_range=wide**-0.5,  # attention of small models hardly starts from Gemma's 0.02
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GemmaForCausalLM(config)  # type: ignore[no-untyped-call]
