"""`sharpmax clrs`: the thirty algorithms of CLRS-Text."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sharpmax.cli.terminal import (
    PLAIN,
    POLICIES,
    goes_on_if_stopped,
    loaded_model,
    named_policies,
    progress_bars,
    require_place,
    torch_device,
    torch_dtype,
)
from sharpmax.policy import POLICY_FILE, Policy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sharpmax.report.clrs import Tables

clrs = typer.Typer(no_args_is_help=True, help="CLRS-Text: algorithms as text, at any size.")


@clrs.command()
def generate(
    folder: Annotated[Path, typer.Argument(help="For the data set.")],
    split: Annotated[str, typer.Option(help="Of the published sizes and seeds: train or val.")] = (
        "train"
    ),
    preset: Annotated[
        str | None, typer.Option(help="An experiment to make the data of: quick or gpu.")
    ] = None,
    algorithm: Annotated[
        list[str] | None, typer.Option(help="All thirty, or one; several may be given.")
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option(help="In place of the published sizes; several may be.")
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="In place of the published seeds; several may be.")
    ] = None,
    each: Annotated[
        int | None,
        typer.Option(help="Samples of an algorithm, size and seed; 10000 of train, 125 of val."),
    ] = None,
    trace: Annotated[
        bool | None,
        typer.Option(help="Whether the algorithm's steps come before its result; yes."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; one a core.")] = None,
) -> None:
    """Make a data set by the benchmark's own generator, the same to the byte."""
    with _needed():
        from sharpmax.tasks.clrs import Recipe
        from sharpmax.tasks.clrs import generate as generated

    changes: dict[str, Any] = {} if seed is None else {"seeds": tuple(seed)}
    changes |= {} if each is None else {"each": each}
    changes |= {} if trace is None else {"trace": trace}
    if preset is None:
        recipe = Recipe.as_published(split, tuple(algorithm or ()), **changes)
    else:
        made = _preset(preset).recipe(split)
        for name in algorithm or ():
            if name not in made.sizes:
                known = ", ".join(made.sizes)
                raise ValueError(f"algorithms of {preset} are {known}, got {name!r}")
        sizes = {name: made.sizes[name] for name in algorithm or made.sizes}
        given = {"seeds": made.seeds, "each": made.each, "trace": made.trace} | changes
        recipe = Recipe(sizes, **given)
    if size is not None:
        recipe = Recipe(
            dict.fromkeys(recipe.sizes, tuple(size)), recipe.seeds, recipe.each, recipe.trace
        )
    console = Console()
    total = len(recipe.files) * recipe.each
    with goes_on_if_stopped(console, folder), progress_bars(console) as bars:
        bar = bars.add_task("generating", total=total)

        def tell(name: str, count: int) -> None:
            bars.update(bar, description=f"generating: {name}", advance=count)

        generated(recipe, folder, workers, tell)
    console.print(f"{total:,} samples in {len(recipe.files):,} files: {escape(str(folder))}")


@clrs.command()
def train(
    data: Annotated[Path, typer.Argument(help="A data set that `clrs generate` has made.")],
    out: Annotated[Path, typer.Option(help="The folder for the model.")],
    preset: Annotated[str, typer.Option(help="Settings to begin with: quick, or gpu.")] = "quick",
    decoder: Annotated[
        str | None, typer.Option(help="To train from scratch: tiny, small or medium.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A folder with pretrained weights to train further instead.")
    ] = None,
    lora: Annotated[
        int | None, typer.Option(help="Train low-rank updates of this rank, not all weights.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="For attention while training: paper, held, or a file.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens; longer samples are left out.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Samples in a step, all processes.")] = None,
    accumulation: Annotated[
        int | None, typer.Option(help="Parts in which a process works through its share.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Of AdamW.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="At most.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights and order; 0.")] = None,
    bf16: Annotated[bool | None, typer.Option(help="Compute in bfloat16.")] = None,
    compiled: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="Let torch compile the layers.")
    ] = None,
    save_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
) -> None:
    """Train a model, from its last checkpoint if there is one; `accelerate launch -m` for many."""
    with _needed():
        from dataclasses import replace

        from transformers.utils import logging

        from sharpmax.tasks.clrs.train import train as trained

    given = {
        "decoder": decoder,
        "model": model,
        "lora": lora,
        "context": context,
        "batch": batch,
        "accumulation": accumulation,
        "steps": steps,
        "learning_rate": learning_rate,
        "seed": seed,
        "bf16": bf16,
        "compile": compiled,
        "save_every": save_every,
    }
    settings = replace(
        _preset(preset).settings, **{k: v for k, v in given.items() if v is not None}
    )
    if model is not None and policy is None and (Path(model) / POLICY_FILE).is_file():
        raise ValueError(
            f"{model} has a policy of its own: --policy {model} trains with it, plain without"
        )
    chosen = None if policy in (None, PLAIN) else next(iter(named_policies([policy]).values()))
    on_cpu = torch_device(device).type == "cpu"
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    console = Console(quiet=int(os.environ.get("RANK", "0")) > 0)
    with goes_on_if_stopped(console, out), progress_bars(console) as bars:
        bar = bars.add_task("training", total=settings.steps)

        def tell(step: int, loss: float | None) -> None:
            said = "training" if loss is None else f"training, loss {loss:.3f}"
            bars.update(bar, description=said, completed=step)

        found = trained(data, out, settings, chosen, on_cpu=on_cpu, tell=tell)
    left = sum(found.too_long.values())
    console.print(
        f"{found.weights:,} weights, {found.samples:,} samples, loss {found.loss:.4f} nats a token "
        f"of the answers: {escape(str(out))}",
        soft_wrap=True,
    )
    if left:
        by = ", ".join(f"{name} {count:,}" for name, count in found.too_long.items())
        console.print(
            f"{left:,} samples are over the context of {settings.context:,} tokens and were left "
            f"out: {by}",
            soft_wrap=True,
        )


@clrs.command()
def evaluate(
    models: Annotated[list[Path], typer.Argument(help="Folders that `clrs train` has made.")],
    data: Annotated[Path, typer.Option(help="A data set with the sizes to ask for.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="At inference beside each model's own: plain, paper, held, a file; several may be."
        ),
    ] = None,
    at_once: Annotated[int | None, typer.Option(help="Questions side by side; 64.")] = None,
    entropy_samples: Annotated[
        int, typer.Option(help="Samples a size to measure the heads' entropies on; 0 for none.")
    ] = 2,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16 or float16; auto is bfloat16 on a GPU.")
    ] = "auto",
    out: Annotated[Path, typer.Option(help="The folder for tables, figures and the page.")] = Path(
        "runs/clrs/evaluated"
    ),
) -> None:
    """Ask models for answers by algorithm and size, and draw the paper's Figure 7 of them."""
    with _needed():
        from dataclasses import asdict

        from sharpmax.tasks.clrs import load
        from sharpmax.tasks.clrs.data import about as about_data
        from sharpmax.tasks.clrs.entropies import entropies
        from sharpmax.tasks.clrs.evaluate import AT_ONCE
        from sharpmax.tasks.clrs.evaluate import evaluate as evaluated
        from sharpmax.tasks.clrs.folder import ANSWERS, Folder
        from sharpmax.tasks.clrs.train import about, trained_sizes, weights_of
    try:
        from sharpmax.report.clrs import Tables, write_report
    except ImportError as error:
        raise ValueError(f"the report needs {error.name}: pip install 'sharpmax[report]'") from None

    if at_once is not None and at_once < 1:
        raise ValueError(f"at_once must be at least 1, got {at_once}")
    if entropy_samples < 0:
        raise ValueError(f"entropy_samples must be at least 0, got {entropy_samples}")
    table = load(data)
    asked_for = policy or []
    others: dict[str, Policy | None] = {PLAIN: None} if PLAIN in asked_for else {}
    others |= named_policies([name for name in asked_for if name != PLAIN])
    told = {folder: about(folder) for folder in models}
    trained = {folder: trained_sizes(folder) for folder in models}
    seeds = {folder: int(told[folder]["settings"]["seed"]) for folder in models}
    cases = {folder: _cases(folder, told[folder]["policy"], others) for folder in models}
    asked = Counter((case, seeds[folder]) for folder in models for case in cases[folder])
    (case, seed), most = asked.most_common(1)[0]
    if most > 1:
        same = [str(folder) for folder in models if case in cases[folder] and seeds[folder] == seed]
        raise ValueError(
            f"{most} models are of one case and seed, {case}, seed {seed}: give one of "
            f"{', '.join(same)}, or evaluate each into a folder of its own, by --out"
        )
    require_place(out / ANSWERS)
    results = Folder.open(out, about_data(data))
    used = str(torch_dtype(dtype, torch_device(device)))
    weights = {folder: weights_of(folder) for folder in models}
    made_of = {
        (folder, case): {
            "training": told[folder],
            "weights": weights[folder],
            "policy": chosen and chosen.to_dict(),
            "dtype": used,
        }
        for folder in models
        for case, chosen in cases[folder].items()
    }
    _require_alike(made_of)
    held = {
        (folder, case): results.holds(case, seeds[folder], made_of[folder, case])
        for folder, case in made_of
    }
    missing = {
        folder: [
            case
            for case in cases[folder]
            if not held[folder, case]
            or (entropy_samples and not results.has_entropies(case, seeds[folder]))
        ]
        for folder in models
    }
    console = Console()
    with goes_on_if_stopped(console, out), progress_bars(console) as bars:
        for folder in models:
            if not missing[folder]:
                continue
            loaded = loaded_model(str(folder), device, dtype, console)
            for case in missing[folder]:
                bar = bars.add_task(f"{folder.name}: {case}", total=table.num_rows)
                asked_of = (loaded.model, loaded.tokenizer, table, cases[folder][case])
                answers = (
                    []
                    if held[folder, case]
                    else evaluated(
                        *asked_of,
                        case=case,
                        seed=seeds[folder],
                        trained=trained[folder],
                        at_once=AT_ONCE if at_once is None else at_once,
                        tell=lambda count, bar=bar: bars.advance(bar, count),  # type: ignore[misc]
                    )
                )
                heads = (
                    entropies(*asked_of, case=case, seed=seeds[folder], each=entropy_samples)
                    if entropy_samples
                    else []
                )
                results.add(case, seeds[folder], made_of[folder, case], answers, heads)
    first = sorted(results.answers, key=lambda row: row.case != PLAIN)
    tables = Tables([asdict(row) for row in first], [asdict(row) for row in results.entropies])
    page = write_report(out, tables, {"data": data, "models": ", ".join(results.cases)})
    console.print(_told(tables))
    console.print(f"Figures, tables and the page: {escape(str(page))}", soft_wrap=True)


def _require_alike(made_of: dict[tuple[Path, str], dict[str, Any]]) -> None:
    """Raise a ValueError if two models of one case, whose answers are pooled, differ in more."""
    from sharpmax.tasks.clrs.folder import alike

    first: dict[str, Path] = {}
    for folder, case in made_of:
        other = first.setdefault(case, folder)
        if not alike(made_of[folder, case], made_of[other, case]):
            raise ValueError(
                f"{other} and {folder} are both called {case}, and differ in more than the seed: "
                "evaluate them into folders of their own, by --out"
            )


def _cases(
    folder: Path, trained: dict[str, Any] | None, others: dict[str, Policy | None]
) -> dict[str, Policy | None]:
    """Return the policies that a model is asked under, by what to call each.

    A policy beside a model that was trained without one came after the training.
    """
    own = Policy.load(folder) if (folder / POLICY_FILE).is_file() else None
    if trained is None:
        calibrated = {} if own is None else {"calibrated": own}
        named = {f"{name} at inference": policy for name, policy in others.items() if policy}
        return {PLAIN: None, **calibrated, **named}
    used = Policy.from_dict(trained)
    known = [name for name, policy in POLICIES.items() if policy == used]
    what = known[0] if known else type(used).__name__
    cases: dict[str, Policy | None] = {f"{what} in both": used}
    for name, policy in others.items():
        if policy is None:
            cases[f"{what} in training"] = None
        elif policy != used:
            cases[f"{what} in training, {name} at inference"] = policy
    return cases


def _told(tables: Tables) -> Table:
    from sharpmax.report.clrs.report import summary_table

    summary = summary_table(tables)
    shown = Table(title="Right answers")
    for number, name in enumerate(summary.header):
        shown.add_column(name, justify="right" if number else "left")
    for row in summary.rows:
        shown.add_row(*map(escape, row))
    shown.caption = f"won, tied and lost beyond the sizes trained on, beside {tables.cases[0]}"
    return shown


def _preset(name: str) -> Any:
    from sharpmax.tasks.clrs.presets import PRESETS

    if name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]


@contextmanager
def _needed() -> Iterator[None]:
    """Say what to install if something is missing."""
    try:
        yield
    except ImportError as error:
        raise ValueError(
            f"clrs needs {error.name}: pip install 'sharpmax[clrs]' and pip install --no-deps "
            "dm-clrs"
        ) from None
