"""What commands share of the terminal: bars with the time left, devices, policies by name."""

from __future__ import annotations

import math
import re
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from sharpmax.policies import HELD, PAPER
from sharpmax.policy import POLICY_FILE, Policy, policy_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from rich.console import Console

    from sharpmax.hf import Loaded

POLICIES = {"paper": PAPER, "held": HELD}
PLAIN, OWN = "plain", "its own policy"
PROSE = "prose"
WRITTEN_EVERY = 60
"""Seconds between two lines of progress in a log."""


class Bars(Progress):
    """Bars that move on a terminal. Elsewhere, as in a log, they are written again now and then."""

    _written = -math.inf

    def add_task(self, description: str, *arguments: Any, **settings: Any) -> TaskID:
        """Add a bar, as `Progress` does."""
        task = super().add_task(description, *arguments, **settings)
        self._write()
        return task

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Change a bar, as `Progress` does."""
        super().update(task_id, **changes)
        self._write()

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """Move a bar on, as `Progress` does."""
        super().advance(task_id, advance)
        self._write()

    def _write(self) -> None:
        now = time.monotonic()
        if not self.console.is_terminal and now - self._written >= WRITTEN_EVERY:
            self._written = now
            self.console.print(self.get_renderable())


def progress_bars(console: Console, *, counted: bool = True) -> Progress:
    """Return bars that tell how much is done, the time it took and the time left."""
    moving = (SpinnerColumn(), BarColumn()) if console.is_terminal else ()
    return Bars(
        *moving[:1],
        TextColumn("{task.description}"),
        *moving[1:],
        MofNCompleteColumn() if counted else TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )


@contextmanager
def goes_on_if_stopped(console: Console, path: Path) -> Iterator[None]:
    """Tell whoever presses Ctrl-C that nothing is lost of what is in a folder."""
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"Stopped; the same command goes on from {escape(str(path))}.")
        raise typer.Exit(130) from None


def torch_device(name: str) -> torch.device:
    """Return the device of that name; "auto" takes a GPU where there is one."""
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here: use --device cpu, or leave it out")
    has_gpu = name != "cpu" and torch.cuda.is_available()
    return torch.device("cuda" if has_gpu else "cpu")


def torch_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of that name; "auto" is bfloat16 on a GPU and float32 elsewhere."""
    import torch

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" else "float32"
    if name not in known:
        raise ValueError(f"dtype must be one of {', '.join(known)}, got {name!r}")
    return known[name]


def named_policies(names: Sequence[str]) -> dict[str, Policy]:
    """Return policies by what to call them: known ones by name, others by their files."""
    policies: dict[str, Policy] = {}
    for name in dict.fromkeys(names):
        if name in POLICIES:
            policies[name] = POLICIES[name]
            continue
        path = Path(name)
        if not policy_file(path).is_file():
            raise ValueError(
                f"there is no policy file {name}, nor a policy of that name: {', '.join(POLICIES)}"
            )
        found = policy_file(path)
        called = found.resolve().parent.name if found.name == POLICY_FILE else found.stem
        taken = {*policies, *POLICIES, PLAIN, OWN}
        free = next(some for some in (called, name, str(found)) if some not in taken)
        policies[free] = Policy.load(name)
    return policies


def cases_of(loaded: Loaded, policies: dict[str, Policy]) -> dict[str, Policy | None]:
    """Return what a model is looked at under: plain, its own policy, and those that were named.

    Raises:
        ValueError: If one of them is for another model.
    """
    from sharpmax.hf.sharpen import require_fit

    own = {} if loaded.policy is None else {OWN: loaded.policy}
    for name, policy in (own | policies).items():
        try:
            require_fit(loaded.model, policy)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return {PLAIN: None, **own, **policies}


def require_place(path: Path) -> None:
    """Make a file's folder, or raise a ValueError if the file could not be written in the end."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error}") from None


def plain_name(model: str) -> str:
    """Return what a model may be called in a file's name and in a sentence."""
    return re.sub(r"[^\w.-]+", "-", Path(model).resolve().name) or "model"


def loaded_model(name: str, device: str, dtype: str, console: Console) -> Loaded:
    """Return a model, with its tokenizer and policy, and say what is fetched for it."""
    from transformers.utils import logging

    from sharpmax.hf import load

    place = torch_device(device)
    kind = torch_dtype(dtype, place)
    # It would stand among the lines of this command.
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return load(name, device=place, dtype=kind, tell=console.print)


def existing_text(name: str, known: Sequence[str]) -> Any:
    """Return a known text's name, or what the file of that name holds."""
    if name in known:
        return name
    try:
        return Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        own = f"; texts of sharpmax's own are {', '.join(known)}" if known else ""
        raise ValueError(f"there is no file {name}{own}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} cannot be read as text: {error}") from None
