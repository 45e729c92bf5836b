"""`sharpmax reproduce`: the paper's max-retrieval study, from training to the finished page."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sharpmax.cli.terminal import goes_on_if_stopped, progress_bars, torch_device

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from sharpmax.tasks.max_retrieval import RunFolder, Settings

STAGES = {
    "train": "training",
    "fit": "fitting policies",
    "evaluate": "evaluating sets",
    "draw": "looking at attention",
}
SIGNIFICANT = 0.05


def reproduce(
    preset: Annotated[
        str, typer.Option(help="Where the settings start from: quick, paper or best.")
    ] = "quick",
    out: Annotated[
        Path | None, typer.Option(help="The run's folder; runs/PRESET if not given.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file of settings, as a run's settings.toml.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    seeds: Annotated[int | None, typer.Option(help="Networks to train, side by side.")] = None,
    first_seed: Annotated[int | None, typer.Option(help="The seed of the first.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of Adam.")] = None,
    batch: Annotated[int | None, typer.Option(help="Sets in a step.")] = None,
    least_items: Annotated[int | None, typer.Option(help="Smallest size trained on.")] = None,
    most_items: Annotated[int | None, typer.Option(help="Largest size trained on.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Adam's.")] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Of the learning rate: constant or cosine.")
    ] = None,
    l2: Annotated[float | None, typer.Option(help="Times half the squared weights.")] = None,
    clip: Annotated[
        float | None, typer.Option(help="Largest norm of a network's gradient; 0 for any.")
    ] = None,
    gumbel: Annotated[
        float | None, typer.Option(help="Strength of the noise on the logits in training.")
    ] = None,
    training_policy: Annotated[
        str | None, typer.Option(help="Sharpens in training: a policy's name or file.")
    ] = None,
    ssmax: Annotated[
        bool | None, typer.Option(help="Whether the networks learn a factor s·ln n (SSMax).")
    ] = None,
    average: Annotated[
        float | None, typer.Option(help="Decay of a running mean of the weights; 0 for none.")
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option(help="A size to test; may be given several times.")
    ] = None,
    sets: Annotated[int | None, typer.Option(help="Test sets for each size and seed.")] = None,
    policy: Annotated[
        list[Path] | None, typer.Option(help="A policy file to test too; several may be given.")
    ] = None,
) -> None:
    """Train max-retrieval networks, show how they disperse, sharpen them, and draw it all.

    The run's folder keeps everything. A run that was stopped goes on when the same command is
    given again; one that is finished is only drawn again.
    """
    # Imported here, so that the other commands start without PyTorch and Altair.
    try:
        from sharpmax.report.max_retrieval import Tables, write_report
        from sharpmax.tasks.max_retrieval import Study, published, read_toml, settings_from
    except ImportError as error:
        raise ValueError(
            f"reproduce needs {error.name}: pip install 'sharpmax[reproduce]'"
        ) from None

    flags: dict[str, Any] = {
        "seeds": seeds,
        "first_seed": first_seed,
        "steps": steps,
        "batch": batch,
        "least_items": least_items,
        "most_items": most_items,
        "learning_rate": learning_rate,
        "schedule": schedule,
        "l2": l2,
        "clip": clip,
        "gumbel": gumbel,
        "training_policy": training_policy,
        "ssmax": ssmax,
        "average": average,
        "sizes": size or None,
        "sets": sets,
        "policies": [str(path) for path in policy] if policy else None,
    }
    given = read_toml(config) if config else {}
    given |= {name: value for name, value in flags.items() if value is not None}
    settings = settings_from(preset, given)
    console = Console()
    progress = progress_bars(console)
    path = out or _default_folder(preset, settings)
    chosen_device = torch_device(device)
    try:
        with goes_on_if_stopped(console, path):
            study = Study.open(path, settings, chosen_device, _teller(progress))
            folder = study.folder
            with progress:
                study.run()
            with console.status("drawing the figures and the page"):
                tables = Tables(
                    **{
                        field.name: folder.read_table(f"{field.name}.csv")
                        for field in dataclasses.fields(Tables)
                        if field.name != "published"
                    },
                    published=published.table(),
                )
                about = folder.read_json("versions.json") | dataclasses.asdict(settings)
                page = write_report(folder.path, tables, about)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise ValueError(f"{path} cannot be used: {error}") from None
        raise ValueError(
            f"the disk of {path} is full: make room and run the same command again, which goes "
            "on from the last checkpoint"
        ) from None
    console.print(_accuracy_table(folder))
    console.print(f"Page, figures, tables and weights: {escape(str(page))}", soft_wrap=True)


def _default_folder(preset: str, settings: Settings) -> Path:
    """Return runs/PRESET, and for settings of one's own a folder beside it."""
    from sharpmax.tasks.max_retrieval import PRESETS

    plain = settings == PRESETS[preset]
    return Path("runs") / (preset if plain else f"{preset}-{settings.digest()}")


def _teller(progress: Progress) -> Any:
    """Return what a study tells its progress to: a bar for each stage."""
    bars: dict[str, TaskID] = {}

    def tell(stage: str, done: int, total: int) -> None:
        if stage not in bars:
            bars[stage] = progress.add_task(STAGES[stage], total=total)
        progress.update(bars[stage], completed=done)

    return tell


def _accuracy_table(folder: RunFolder) -> Table:
    """Return accuracies in per cent by policy and size; bold where they differ from softmax."""
    rows = folder.read_table("comparison.csv")
    sizes = sorted({row["size"] for row in rows})
    table = Table(title="Accuracy in % by items in a set")
    table.add_column("policy")
    for size in sizes:
        table.add_column(f"{size:,}", justify="right")
    cells = {(row["policy"], row["size"]): row for row in rows}
    for policy in dict.fromkeys(row["policy"] for row in rows):
        name = "argmax, the limit" if policy == "argmax" else policy
        table.add_row(escape(name), *(_cell(cells[policy, size]) for size in sizes))
    table.caption = f"bold: p < {SIGNIFICANT} against softmax, paired t-test over the seeds"
    return table


def _cell(row: dict[str, Any]) -> str:
    text = f"{100 * row['accuracy']:.1f}"
    p_value = row["p_value"]
    return f"[bold]{text}[/bold]" if p_value is not None and p_value < SIGNIFICANT else text
