"""`sharpmax evaluate`: what policies do to a model's text and retrieval, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sharpmax.cli.terminal import (
    PROSE,
    cases_of,
    existing_text,
    loaded_model,
    named_policies,
    plain_name,
    progress_bars,
    require_place,
)

if TYPE_CHECKING:
    from sharpmax.hf import Score


def evaluate(
    model: Annotated[
        str,
        typer.Argument(help="smollm2-135m, gemma-3-270m, a folder, a GGUF file, or owner/name."),
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(help="A policy to test: a file, paper, or held; several may be given."),
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(help="Tokens; several may be given. By default 512, 1024 and 2048."),
    ] = None,
    text: Annotated[str, typer.Option(help="For the loss: prose, or a file.")] = PROSE,
    windows: Annotated[
        int | None, typer.Option(help="Parts of the text at each length; 4. 0 for none.")
    ] = None,
    template: Annotated[
        list[str] | None, typer.Option(help="Of the pairs to retrieve; those held out.")
    ] = None,
    depth: Annotated[
        list[float] | None,
        typer.Option(help="Where the line that is asked for stands; 0, 0.5 and 1."),
    ] = None,
    prompts: Annotated[
        int | None, typer.Option(help="For each template, length and depth; 8. 0 for none.")
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="A task of lm_eval, such as niah_multikey_2; several.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Prompts of each lm_eval task; 20.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the prompts; 0.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    out: Annotated[Path | None, typer.Option(help="The CSV file to write.")] = None,
) -> None:
    """Loss on text, retrieval by length and depth, and lm_eval tasks, plain and sharpened."""
    try:
        from sharpmax.hf import Plan, Score
        from sharpmax.hf.evaluate import by_case
        from sharpmax.hf.table import write_csv
    except ImportError as error:
        raise ValueError(
            f"evaluate needs {error.name}: pip install 'sharpmax[transformers]'"
        ) from None

    read = existing_text(text, (PROSE,))
    given: dict[str, Any] = {
        "lengths": length,
        "text": None if read == PROSE else read,
        "windows": windows,
        "templates": template,
        "depths": depth,
        "prompts": prompts,
        "tasks": task,
        "limit": limit,
        "seed": seed,
    }
    plan = Plan(**{name: value for name, value in given.items() if value is not None})
    policies = named_policies(policy or [])
    path = out or Path("runs") / f"evaluate-{plain_name(model)}.csv"
    require_place(path)
    console = Console()
    loaded = loaded_model(model, device, dtype, console)
    cases = cases_of(loaded, policies)
    plan = plan.within(loaded.model)
    scores: list[Score] = []
    with progress_bars(console, counted=False) as bars:
        bar = bars.add_task("evaluating", total=len(cases) * plan.tokens() or None)
        found = by_case(loaded.model, loaded.tokenizer, cases, plan, lambda n: bars.advance(bar, n))
        for of_case in found:
            scores += of_case
            try:
                write_csv(path, Score, scores)  # what is found is kept, whatever comes next
            except OSError as error:
                raise ValueError(f"{path} cannot be written: {error}") from None
    console.print(_table(scores))
    console.print(f"Table with intervals and depths: {escape(str(path))}", soft_wrap=True)


def _table(scores: list[Score]) -> Table:
    """Return a row for each task and length, the mean over depths, and a column a policy."""
    cases = list(dict.fromkeys(score.case for score in scores))
    table = Table(title="Plain and sharpened")
    table.add_column("task")
    table.add_column("tokens", justify="right")
    for case in cases:
        table.add_column(escape(case), justify="right")
    for task, length in dict.fromkeys((score.task, score.length) for score in scores):
        cells = []
        for case in cases:
            of_case = [s for s in scores if (s.case, s.task, s.length) == (case, task, length)]
            total = sum(s.samples for s in of_case)
            cells.append(f"{sum(s.value * s.samples for s in of_case) / total:.3f}")
        table.add_row(escape(task), "–" if length is None else f"{length:,}", *cells)
    table.caption = "text: less is better; everything else is the share of right answers"
    return table
