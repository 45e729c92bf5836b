"""Load a model with its tokenizer and, where one lies beside it, its policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from sharpmax.hf.packaged import MODELS, packaged_model
from sharpmax.policy import POLICY_FILE, Policy


class Loaded(NamedTuple):
    """A model, its tokenizer, and the policy that travels with it or None."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    policy: Policy | None


def load(
    name: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    tell: Callable[[str], None] = print,
) -> Loaded:
    """Load a causal language model.

    Nothing that comes with a model is executed, unless it is asked for by name.

    Args:
        name: "smollm2-135m" or "gemma-3-270m" (fetched by pip at first), a folder of safetensors,
            a GGUF file or a folder with one, or a name on the Hugging Face hub.
        dtype: Of the weights.
        device: Where they go.
        trust_remote_code: Whether Python code that comes with the model may run.
        allow_pickle: Whether weights may come as a pickle, which can run code too.
        tell: Told what is fetched, and under which licence.

    Raises:
        ValueError: If it cannot be loaded, in one line.
    """
    if not str(name).strip():
        raise ValueError("name must name a model, got nothing")
    path = packaged_model(str(name), tell) if str(name) in MODELS else Path(name)
    folder = path.parent if path.suffix == ".gguf" else path
    source, extra = _source(path, str(name))
    settings: dict[str, Any] = {"trust_remote_code": trust_remote_code, **extra}
    if "gguf_file" not in extra:
        settings["use_safetensors"] = None if allow_pickle else True
    try:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **settings)
        settings.pop("use_safetensors", None)
        tokenizer = AutoTokenizer.from_pretrained(source, **settings)
    except Exception as error:  # whatever lies in a file that is no model
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(
            f"{name} cannot be loaded as a model: {_hint(folder, extra) or reason}"
        ) from error
    policy = Policy.load(folder) if (folder / POLICY_FILE).is_file() else None
    model.train(False).to(device)
    return Loaded(model, tokenizer, policy)


def _hint(folder: Path, extra: dict[str, str]) -> str | None:
    """Return what is most likely wrong, where transformers' own words would not tell."""
    if "gguf_file" in extra:
        return f"{extra['gguf_file']} is no GGUF file that transformers reads, or is cut off"
    if not folder.is_dir():
        return None
    if not any(folder.glob("*.safetensors")) and any(folder.glob("*.bin")):
        return (
            "its weights are a pickle, which can run code: allow_pickle=True reads it all the same"
        )
    if not any(folder.glob("tokenizer*")):
        return "there is no tokenizer beside it"
    return None


def _source(path: Path, name: str) -> tuple[str, dict[str, str]]:
    """Return what transformers loads from, and which GGUF file of it."""
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ValueError(f"there is no file {path}")
        return str(path.parent), {"gguf_file": path.name}
    if not path.is_dir():
        if path.exists() or name.count("/") != 1 or name.startswith((".", "/", "~")):
            raise ValueError(
                f"there is no model {name}: name a folder, a GGUF file, a model of the Hugging "
                f"Face hub (owner/name), or one of {', '.join(MODELS)}"
            )
        return name, {}
    if (path / "config.json").is_file():
        return str(path), {}
    found = sorted(path.glob("*.gguf"))
    if len(found) != 1:
        raise ValueError(
            f"{path} holds no config.json and {len(found)} GGUF files: name the file to load"
            if found
            else f"{path} holds no model: neither config.json nor a GGUF file"
        )
    return str(path), {"gguf_file": found[0].name}
