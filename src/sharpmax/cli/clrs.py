"""`sharpmax clrs`: the thirty algorithms of CLRS-Text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sharpmax.cli.terminal import progress_bars

clrs = typer.Typer(no_args_is_help=True, help="CLRS-Text: algorithms as text, at any size.")


@clrs.command()
def generate(
    folder: Annotated[Path, typer.Argument(help="For the data set.")],
    split: Annotated[str, typer.Option(help="Of the published sizes and seeds: train or val.")] = (
        "train"
    ),
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
        bool, typer.Option(help="Whether the algorithm's steps come before its result.")
    ] = True,
    workers: Annotated[int | None, typer.Option(help="Processes; one a core.")] = None,
) -> None:
    """Make a data set by the benchmark's own generator, the same to the byte."""
    try:
        from sharpmax.tasks.clrs import Recipe
        from sharpmax.tasks.clrs import generate as generated
    except ImportError as error:
        raise ValueError(f"clrs needs {error.name}: pip install 'sharpmax[clrs]'") from None

    changes: dict[str, Any] = {"trace": trace}
    changes |= {} if seed is None else {"seeds": tuple(seed)}
    changes |= {} if each is None else {"each": each}
    recipe = Recipe.as_published(split, tuple(algorithm or ()), **changes)
    if size is not None:
        recipe = Recipe(
            dict.fromkeys(recipe.sizes, tuple(size)), recipe.seeds, recipe.each, recipe.trace
        )
    console = Console()
    total = len(recipe.files) * recipe.each
    with progress_bars(console) as bars:
        bar = bars.add_task("generating", total=total)

        def tell(name: str, count: int) -> None:
            bars.update(bar, description=f"generating: {name}", advance=count)

        generated(recipe, folder, workers, tell)
    console.print(f"{total:,} samples in {len(recipe.files):,} files: {folder}")
