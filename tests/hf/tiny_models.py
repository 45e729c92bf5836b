"""Tiny random models of every architecture that is tested, and attention by the formula."""

from typing import Any

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

COMMON: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = 8
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": WINDOW},
    "qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen3": {"head_dim": 16},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "sliding_window": WINDOW, "query_pre_attn_scalar": 16},
    "gemma3_text": {
        "head_dim": 16,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "gpt_neox": {},
    "phi3": {},
    "olmo2": {},
    "smollm3": {},
    "gpt_oss": {
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": WINDOW,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "bert": {},
}
DECODERS = [name for name in ARCHITECTURES if name != "bert"]


def tiny(name: str, **changes: Any) -> PreTrainedModel:
    """Return a random model whose attention is sharp enough to be told from the mean."""
    config = AutoConfig.for_model(name, **COMMON | ARCHITECTURES[name] | changes)
    kind = AutoModel if name == "bert" else AutoModelForCausalLM
    torch.manual_seed(0)
    model = kind.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(3.0)
    return model


def letters() -> PreTrainedTokenizerFast:
    """Return a tokenizer of one letter a token."""
    known = {chr(number): number - 32 + 1 for number in range(32, 127)}
    tokenizer = Tokenizer(WordLevel(known | {"\n": 0, "?": known["?"]}, unk_token="?"))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")


def tokens(batch: int = 2, length: int = 37) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, COMMON["vocab_size"], (batch, length), generator=generator)


def by_formula(
    _: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **__: Any,
) -> tuple[Tensor, Tensor]:
    """Attend as the eager functions of transformers do, with the paper's β put in."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    logits = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if attention_mask is not None:
        logits = logits.masked_fill(attention_mask < -1, -1e9)
    if s_aux is not None:
        sink = s_aux.view(1, -1, 1, 1).expand(*logits.shape[:3], 1)
        logits = torch.cat((logits, sink), dim=-1)
    h = torch.logsumexp(logits, -1) - (torch.softmax(logits, -1) * logits).sum(-1)
    beta = -0.037 * h**4 + 0.481 * h**3 - 2.3 * h**2 + 4.917 * h - 1.791
    beta = torch.where(h > 0.5, beta.clamp(min=1.0), 1.0)
    weights = torch.softmax(beta[..., None] * logits, -1)[..., : value.shape[2]]
    return (weights @ value).transpose(1, 2).contiguous(), weights
