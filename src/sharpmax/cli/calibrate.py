"""`sharpmax calibrate`: fit β head by head, so that a model finds things where it failed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sharpmax.cli.terminal import (
    PROSE,
    existing_text,
    goes_on_if_stopped,
    loaded_model,
    plain_name,
    progress_bars,
)
from sharpmax.files import written_whole
from sharpmax.policy import POLICY_FILE, Policy, policy_file

if TYPE_CHECKING:
    from sharpmax.hf import Calibration, Loaded, Plan, Score
    from sharpmax.hf.calibrate import Check, Examples, Point

COMPARISON, HEADS = "comparison.csv", "heads.csv"
COMPARED = 20
"""Prompts of a template and length to compare policies on."""


def calibrate(
    model: Annotated[
        str,
        typer.Argument(help="smollm2-135m, gemma-3-270m, a folder, a GGUF file, or owner/name."),
    ],
    length: Annotated[
        int | None, typer.Option(help="Tokens of the longest prompts to fit to; 2048.")
    ] = None,
    max_text_loss: Annotated[
        str | None,
        typer.Option(help="How much the loss on text may grow, such as 1% (the default)."),
    ] = None,
    cost: Annotated[
        list[str] | None,
        typer.Option(
            help="What the loss on text may grow by while fitting, one after another; "
            "2, 0.8 and 0.4 times --max-text-loss."
        ),
    ] = None,
    heads: Annotated[
        list[int] | None,
        typer.Option(
            help="Then leave only so many heads changed, where there are more; 64, 32, 16 and 8. "
            "0 for none."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="At each cost, at most; 200.")] = None,
    entropy: Annotated[
        bool,
        typer.Option(help="Whether what is fitted reads the entropy too, or the length alone."),
    ] = True,
    sink: Annotated[
        bool,
        typer.Option(help="Whether the first key, the sink, stands apart, or β is for all keys."),
    ] = True,
    text: Annotated[
        list[str] | None,
        typer.Option(help="To keep the predictions on: prose, or a file; several may be given."),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(help='A file of {"prompt": …, "answer": …} a line, to fit to as well.'),
    ] = None,
    own: Annotated[
        str | None,
        typer.Option(help="Their share in what is fitted to; 50%. At 100% there is nothing else."),
    ] = None,
    start: Annotated[
        Path | None, typer.Option(help="A policy that was calibrated before, to go on from.")
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(help="Of the prompts that are not made up; several may be given."),
    ] = None,
    prompts: Annotated[
        int | None,
        typer.Option(help="Texts of lines in a step, more of shorter ones; 12."),
    ] = None,
    asked: Annotated[int | None, typer.Option(help="Questions for each of these; 16.")] = None,
    texts: Annotated[
        int | None, typer.Option(help="Windows of text in a step, likewise; 8.")
    ] = None,
    check_prompts: Annotated[
        int | None, typer.Option(help="A template and length, to see when to stop; 16.")
    ] = None,
    check_texts: Annotated[int | None, typer.Option(help="For the same; 8.")] = None,
    at_once: Annotated[
        int | None,
        typer.Option(help="Sequences to read together; as many as fit on a GPU, 1 on a CPU."),
    ] = None,
    checkpointing: Annotated[
        bool, typer.Option(help="Compute activations twice rather than keep them.")
    ] = False,
    learning_rate: Annotated[float | None, typer.Option(help="Of Adam; 0.1.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of prompts and texts.")] = None,
    compared: Annotated[
        int | None,
        typer.Option(
            help="Prompts a template and length to compare policies; 0 for none. 20, or none at "
            "--own 100%."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16 or float16; auto is bfloat16 on a GPU.")
    ] = "auto",
    out: Annotated[Path | None, typer.Option(help="The folder for everything.")] = None,
) -> None:
    """Fit a policy by head, the weights untouched, and show what it finds and what it costs."""
    try:
        from sharpmax.hf import Score
        from sharpmax.hf import calibrate as calibrated
        from sharpmax.hf.calibrate import (
            Examples,
            HeadChange,
            Question,
            Settings,
            comparison_plan,
            head_changes,
            require_room,
            total_steps,
        )
        from sharpmax.hf.calibrate.folder import STATE
        from sharpmax.hf.calibrate.processes import Processes
        from sharpmax.hf.table import read_csv, write_csv
        from sharpmax.hf.texts import prose
        from sharpmax.report.calibration import write_report
    except ImportError as error:
        raise ValueError(
            f"calibrate needs {error.name}: pip install 'sharpmax[transformers,report]'"
        ) from None

    given: dict[str, Any] = {
        "length": length,
        "max_text_loss": None if max_text_loss is None else _share("max-text-loss", max_text_loss),
        "costs": None if cost is None else [_share("cost", value) for value in cost],
        "heads": () if heads == [0] else heads,
        "steps": steps,
        "entropy": entropy,
        "sink": sink,
        "own": None if own is None else _share("own", own),
        "templates": template,
        "prompts": prompts,
        "asked": asked,
        "texts": texts,
        "check_prompts": check_prompts,
        "check_texts": check_texts,
        "at_once": at_once,
        "checkpointing": checkpointing,
        "learning_rate": learning_rate,
        "seed": seed,
    }
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    if compared is None:
        compared = 0 if settings.own == 1 else COMPARED
    if compared < 0:
        raise ValueError(f"compared must be at least 0, got {compared}")
    names = text or [PROSE]
    read = [prose() if name == PROSE else _filled_text(name) for name in names]
    wanted: list[Question] = []
    if questions is not None:
        try:
            wanted = Question.read(existing_text(str(questions), ()))
        except ValueError as error:
            raise ValueError(f"{questions}: {error}") from None
    elif own is not None:
        raise ValueError("--own is the share of --questions, and there are none")
    if start is not None and not policy_file(start).is_file():
        raise ValueError(f"there is no policy file {start} to start from")
    folder = out or Path("runs") / f"calibrate-{plain_name(model)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder} cannot be written: {error}") from None

    _join_processes()
    is_first = Processes.here().is_first
    console = Console(quiet=not is_first)
    loaded = loaded_model(model, device, dtype, console)
    name = plain_name(model)
    require_room(loaded.model, settings)
    if is_first and not (folder / STATE).is_file() and (folder / COMPARISON).is_file():
        (folder / COMPARISON).replace(folder / f"{COMPARISON}.before")  # was of other policies
    examples = Examples(loaded.tokenizer, settings, read, wanted)
    plan = comparison_plan(loaded.model, examples, compared) if compared else None
    with goes_on_if_stopped(console, folder), progress_bars(console) as bars:
        bar = bars.add_task("looking at the model", total=total_steps(settings))

        def tell(stage: str, done: int) -> None:
            bars.update(bar, description=f"fitting: {stage}", advance=done)

        found = calibrated(
            loaded.model,
            loaded.tokenizer,
            settings,
            text=read,
            questions=wanted,
            start=None if start is None else Policy.load(start),
            folder=folder,
            name=name,
            tell=tell,
        )
    if not is_first:
        return
    console.print(_points(found))
    path = folder / COMPARISON
    scores: Sequence[Score] = read_csv(path, Score) if path.is_file() else []
    if plan is not None:
        with goes_on_if_stopped(console, folder):
            scores = _compared(loaded, found, examples, plan, console, path, scores)
    changes = head_changes(found.policies[found.chosen.name], settings.length)
    write_csv(folder / HEADS, HeadChange, changes)
    with console.status("drawing the figures and the page"):
        page = write_report(
            folder,
            _tables(found, changes, scores),
            {name: _in_words(value) for name, value in asdict(settings).items()}
            | {"model": model, "text": ", ".join(names), "questions": str(questions or "none")}
            | {"start": str(start or "plain attention"), "device": device, "dtype": dtype},
            title=f"What β makes of {name}",
        )
    console.print(f"Page, figures, tables and policies: {escape(str(page))}", soft_wrap=True)
    if found.kept is None:
        earlier = folder / POLICY_FILE
        raise ValueError(
            "no policy finds more than the original model at a cost on text of at most "
            f"{settings.max_text_loss:.1%}: none is kept"
            + (f" ({earlier} was there before)" if earlier.is_file() else "")
        )
    console.print(f"The policy, {found.kept.name}: {escape(str(folder / 'sharpmax.json'))}")


def _share(option: str, value: str) -> float:
    """Return a share that is written as 1% or as 0.01; a bare 1 may be meant for either."""
    number = value.strip().removesuffix("%")
    in_percent = number != value.strip()
    try:
        share = round(float(number) / (100 if in_percent else 1), 10)  # 0.9% is 0.009
        if in_percent or share < 1:
            return share
    except ValueError:
        pass
    raise ValueError(f"{option} must be a share such as 1%, 100% or 0.01, got {value!r}")


def _filled_text(name: str) -> str:
    """Return what a file holds that is not empty."""
    held = existing_text(name, (PROSE,))
    if not held.strip():
        raise ValueError(f"{name} is empty: give a --text with something in it")
    return str(held)


def _in_words(value: object) -> object:
    """Return a setting as a reader of the page would write it."""
    if value is None:
        return "auto"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return value


def _join_processes() -> None:
    """Meet the other processes, where accelerate has launched several."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate import PartialState

        PartialState()


def _points(found: Calibration) -> Table:
    table = Table(title="On prompts and text that were not fitted to")
    own = found.plain.own is not None
    names = ["policy", "heads", "found", *(["of your own"] if own else []), "loss of answers"]
    for name in (*names, "text", "divergence"):
        table.add_column(name, justify="left" if name == "policy" else "right")

    def cells(check: Check | Point) -> list[str]:
        mine = ["–" if check.own is None else f"{check.own:.1%}"] if own else []
        return [f"{check.retrieval:.1%}", *mine, f"{check.answer_loss:.3f}"]

    table.add_row("plain", "0", *cells(found.plain), "", "0")
    for point in found.points:
        name = point.name + (" (kept)" if point == found.kept else "")
        paid = f"{point.text_cost:+.2%}", f"{point.divergence:.4f}"
        table.add_row(name, str(point.heads), *cells(point), *paid)
    return table


def _compared(
    loaded: Loaded,
    found: Calibration,
    examples: Examples,
    plan: Plan,
    console: Console,
    path: Path,
    known: Sequence[Score],
) -> Sequence[Score]:
    """Lay the policies beside others; what is there is written after each of them."""
    from sharpmax.hf import Score
    from sharpmax.hf.calibrate import compare, compared_cases
    from sharpmax.hf.table import write_csv

    scores: list[Score] = []
    cases = compared_cases(found)
    with progress_bars(console, counted=False) as bars:
        bar = bars.add_task("comparing", total=len(cases) * plan.tokens())
        told = partial(bars.advance, bar)
        for some in compare(loaded.model, loaded.tokenizer, found, examples, plan, told, known):
            scores = sorted([*scores, *some], key=lambda score: cases.index(score.case))
            with written_whole(path) as fresh:
                write_csv(fresh, Score, scores)
    return scores


def _tables(found: Calibration, changes: Sequence[Any], scores: Sequence[Score]) -> Any:
    from sharpmax.report.calibration import Tables

    return Tables(
        plain=asdict(found.plain),
        points=[asdict(point) for point in found.points],
        kept=None if found.kept is None else found.kept.name,
        chosen=found.chosen.name,
        heads=[asdict(change) for change in changes],
        scores=[asdict(score) for score in scores],
    )
