"""Training on CLRS-Text by transformers' Trainer: on a CPU, a GPU, or many through accelerate."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import PartialState
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from sharpmax.files import written_whole
from sharpmax.hf.load import load as load_model
from sharpmax.hf.sharpen import context_of, sharpen
from sharpmax.tasks.clrs import data
from sharpmax.tasks.clrs.decoder import decoder
from sharpmax.tasks.clrs.sequences import ByLength, Collator, Sequences
from sharpmax.tasks.clrs.settings import Settings
from sharpmax.tasks.clrs.tokens import character_tokenizer

if TYPE_CHECKING:
    from sharpmax.policy import Policy

ABOUT, SIZES, LOSSES = "training.json", "sizes.json", "loss.csv"
CHECKPOINTS, STATE = "checkpoints", "trainer_state.json"
KEPT = 2
"""Checkpoints."""
WARM_UP, WEIGHT_DECAY = 0.05, 0.1
COMPILER = "inductor"
"""That torch compiles a model with."""
LORA_SCALE = 2
"""LoRA's alpha over its rank."""

Tell = Callable[[int, float | None], None]
"""Told how many steps are done, and the latest loss."""


@dataclass(frozen=True)
class Trained:
    """What came of a training.

    Attributes:
        loss: The last that was logged, in nats a token of the answers.
        samples: That fitted into the context.
        too_long: By algorithm, how many did not, and were left out.
        weights: How many the model has.
    """

    loss: float
    samples: int
    too_long: Mapping[str, int]
    weights: int


def train(
    folder: str | Path,
    out: str | Path,
    settings: Settings,
    policy: Policy | None = None,
    *,
    on_cpu: bool = False,
    tell: Tell = lambda _, __: None,
) -> Trained:
    """Train a model on a data set of CLRS-Text, from its last whole checkpoint if there is one.

    The folder then holds the model as safetensors, its tokenizer, and the policy, if any, that
    it was trained with: `sharpmax.hf.load` reads all three.

    Args:
        folder: Of the data set.
        out: For the model.
        settings: What to train, and for how long.
        policy: Chooses β of every row of attention while it is trained.
        on_cpu: Whether to leave a GPU alone.
        tell: Told after every step.

    Raises:
        ValueError: If the data or the model cannot be used, or the folder holds another training.
    """
    out = Path(out)
    if settings.model is not None and Path(settings.model).resolve() == out.resolve():
        raise ValueError(f"{out} holds the weights to begin with: choose another folder")
    processes = PartialState(cpu=on_cpu)
    if processes.num_processes == 1 and not on_cpu and torch.cuda.device_count() > 1:
        raise ValueError(
            "one process sees several GPUs: use accelerate launch, or set CUDA_VISIBLE_DEVICES=0"
        )
    share = settings.batch // processes.num_processes
    if settings.batch % (processes.num_processes * settings.accumulation):
        raise ValueError(
            f"batch must be a multiple of {processes.num_processes} processes times "
            f"{settings.accumulation} parts, got {settings.batch}"
        )
    wanted = _about(folder, settings, policy)
    _require_free(out, wanted)
    model, tokenizer = _model(settings)
    with processes.main_process_first():  # the others then find the tokens
        sequences = Sequences.of_folder(folder, tokenizer, settings.context)
    if not len(sequences):
        raise ValueError(f"no sample of {folder} fits into a context of {settings.context} tokens")
    if len(sequences) < settings.batch:
        raise ValueError(
            f"batch must be at most the samples that fit into a context of {settings.context} "
            f"tokens, {len(sequences)}, got {settings.batch}"
        )
    processes.wait_for_everyone()
    if processes.is_main_process:
        _note(out, wanted)
    weights = sum(weight.numel() for weight in model.parameters())
    with sharpen(model, policy) if policy is not None else nullcontext():
        trained = _with_lora(model, settings)
        if settings.compile:
            compile_layers(trained)
        trainer = _Trainer(
            model=trained,
            args=_arguments(out, settings, share // settings.accumulation, on_cpu),
            train_dataset=sequences,
            data_collator=Collator(tokenizer.pad_token_id, settings.context),
            callbacks=[_Told(tell)],
        )
        trainer.remove_callback(PrinterCallback)
        last, done = _last_checkpoint(out)
        if last is not None and done >= settings.steps:  # stopped before the model was saved
            trainer._load_from_checkpoint(last)
            trainer.state = TrainerState.load_from_json(str(Path(last) / STATE))
        else:
            trainer.train(resume_from_checkpoint=last)
    if settings.lora:
        trainer.model = trained.merge_and_unload()
    trainer.save_model(str(out))
    losses = [entry for entry in trainer.state.log_history if "loss" in entry]
    if processes.is_main_process:
        tokenizer.save_pretrained(out)
        (out / SIZES).write_text(json.dumps(sequences.sizes), encoding="utf-8")
        if policy is not None:
            policy.save(out)
        _write_losses(out / LOSSES, losses)
    return Trained(losses[-1]["loss"], len(sequences), sequences.too_long, weights)


def trained_sizes(folder: str | Path) -> dict[str, list[int]]:
    """Return the sizes that a model was trained on, by algorithm; those that fitted its context.

    Raises:
        ValueError: If the folder holds no training, or one that has not come to its end.
    """
    about(folder)
    try:
        sizes: dict[str, list[int]] = json.loads((Path(folder) / SIZES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ValueError(
            f"{folder} holds a training that has not come to its end: sharpmax clrs train goes on"
        ) from None
    return sizes


def about(folder: str | Path) -> dict[str, Any]:
    """Return what a training was made of: its data, settings and policy.

    Raises:
        ValueError: If the folder holds no training.
    """
    path = Path(folder) / ABOUT
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not {"data", "settings", "policy"} <= found.keys():
            raise ValueError("it is not whole")
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no model that sharpmax clrs train has made") from None
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return found


def weights_of(folder: str | Path) -> str:
    """Return what tells the weights in a folder from all others: the SHA-256 of their files."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


class _Trainer(Trainer):
    def _get_train_sampler(self, train_dataset: Any = None) -> ByLength:
        sequences: Any = self.train_dataset if train_dataset is None else train_dataset
        args = self.args
        parts = args.gradient_accumulation_steps
        batch = args.train_batch_size * parts * args.world_size
        return ByLength(sequences, batch, args.seed, parts)


class _Told(TrainerCallback):
    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.loss: float | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        state.compute_steps(args, state.max_steps)  # a checkpoint has those of its own run

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self.tell(state.global_step, self.loss)

    def on_log(self, args: Any, state: Any, control: Any, **also: Any) -> None:  # noqa: ARG002
        self.loss = also.get("logs", {}).get("loss", self.loss)
        if self.loss is not None and not math.isfinite(self.loss):  # before it is saved
            raise ValueError(
                f"the loss is not finite at step {state.global_step:,}: lower the learning rate, "
                f"{args.learning_rate:g}, and choose another folder"
            )


def _arguments(out: Path, settings: Settings, batch: int, on_cpu: bool) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(out / CHECKPOINTS),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=settings.accumulation,
        max_steps=settings.steps,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=round(WARM_UP * settings.steps),
        weight_decay=WEIGHT_DECAY,
        adam_beta2=0.98,
        bf16=settings.bf16,
        use_cpu=on_cpu,
        seed=settings.seed,
        save_steps=settings.save_every,
        save_total_limit=KEPT,
        logging_steps=_log_every(settings),
        logging_nan_inf_filter=False,
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to=[],
    )


def _log_every(settings: Settings) -> int:
    """Return a hundredth of the steps or fewer, of which each checkpoint ends one."""
    most = max(1, settings.steps // 100)
    return max(n for n in range(1, most + 1) if settings.save_every % n == 0)


def _model(settings: Settings) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if settings.model is None:
        tokenizer: PreTrainedTokenizerBase = character_tokenizer()
        return decoder(settings.decoder, tokenizer, settings.seed), tokenizer
    model, tokenizer, _ = load_model(settings.model)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if settings.context > context_of(model):
        raise ValueError(
            f"context must be within that of {settings.model}, {context_of(model):,} tokens, got "
            f"{settings.context:,}"
        )
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer of {settings.model} has no token for the end of a text")
    # What reads images, in models that have it, may look wherever it likes.
    text = model.get_decoder()  # type: ignore[no-untyped-call]
    if any(getattr(module, "is_causal", True) is False for module in text.modules()):
        raise ValueError(
            f"{settings.model} reads what comes later, such as the answer that it is to learn: "
            "give a causal language model"
        )
    return model, tokenizer


def _with_lora(model: PreTrainedModel, settings: Settings) -> Any:
    """Return the model with only low-rank updates of its linear layers to train."""
    rank = settings.lora
    if not rank:
        return model
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ValueError("LoRA needs peft: pip install peft") from None
    config = LoraConfig(
        r=rank, lora_alpha=LORA_SCALE * rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return get_peft_model(model, config)


def compile_layers(model: torch.nn.Module) -> None:
    """Let torch compile the layers: they are alike, so once for the first length, once for all."""
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.compile(backend=COMPILER)


def _about(folder: str | Path, settings: Settings, policy: Policy | None) -> dict[str, Any]:
    """Return everything that the weights depend on."""
    made = {
        "data": data.about(folder),
        "settings": asdict(replace(settings, save_every=Settings.save_every)),
        "policy": None if policy is None else policy.to_dict(),
    }
    found: dict[str, Any] = json.loads(json.dumps(made))
    return found


def _require_free(out: Path, wanted: dict[str, Any]) -> None:
    """Raise a ValueError if anything came of another training in the folder."""
    begun = (out / SIZES).exists() or _last_checkpoint(out)[0] is not None
    if not begun or not (out / ABOUT).exists():
        return
    held = about(out)
    if held != wanted:
        other = next((n for n in wanted if held[n] != wanted[n]), "version of sharpmax")
        raise ValueError(f"{out} holds a training with other {other}: choose another folder")


def _note(out: Path, wanted: dict[str, Any]) -> None:
    """Tell in the folder what is trained there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with written_whole(out / ABOUT) as fresh:
            fresh.write_text(json.dumps(wanted, indent=1), encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{out} cannot be written: {error}") from None


def _last_checkpoint(out: Path) -> tuple[str | None, int]:
    """Return the last checkpoint that is whole, and its steps.

    The trainer's state is written when all else is there.
    """
    whole = []
    for state in (out / CHECKPOINTS).glob(f"checkpoint-*/{STATE}"):
        try:
            whole.append((int(json.loads(state.read_text())["global_step"]), str(state.parent)))
        except (OSError, ValueError, KeyError):
            continue  # stopped while it was written
    steps, last = max(whole, default=(0, None))
    return last, steps


def _write_losses(path: Path, losses: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss"])
        writer.writerows([entry["step"], entry["loss"]] for entry in losses)
