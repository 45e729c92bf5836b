"""`sharpmax diagnose`: what a model's heads do as its context grows."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

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
)

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from sharpmax.hf import Diagnosis

SHOWN = {
    "entropy": "entropy",
    "share": "of ln n",
    "largest": "largest",
    "first": "first",
    "near": "last 32",
    "spread": "spread δ",
}


def diagnose(
    model: Annotated[
        list[str],
        typer.Argument(
            help="smollm2-135m, gemma-3-270m, a folder, a GGUF file, or owner/name; several are "
            "laid side by side."
        ),
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Also under this policy: a file, paper, or held; several may be given."),
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(help="Tokens; several may be given. By default 64, 128, … 8192."),
    ] = None,
    text: Annotated[str, typer.Option(help="What is read: prose, max, keys, or a file.")] = PROSE,
    rows: Annotated[
        int | None,
        typer.Option(help="Rows to look at before each length; by default its second half."),
    ] = None,
    samples: Annotated[int, typer.Option(help="Texts to read.")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    out: Annotated[
        Path | None, typer.Option(help="The folder for table, figures and page.")
    ] = None,
) -> None:
    """Measure every head: entropy, largest weight, sinks, logit spread, and the theory's bound."""
    try:
        from sharpmax.hf import Diagnosis
        from sharpmax.hf import diagnose as diagnosed
        from sharpmax.report.diagnosis import write_report
    except ImportError as error:
        raise ValueError(
            f"diagnose needs {error.name}: pip install 'sharpmax[transformers,report]'"
        ) from None

    console = Console()
    read = existing_text(text, (PROSE, "max", "keys"))
    policies = named_policies(policy or [])
    folder = out or Path("runs") / f"diagnose-{plain_name(model[0])}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder} cannot be written: {error}") from None
    model = list(dict.fromkeys(model))
    short = [plain_name(name) for name in model]
    names = short if len({*short}) == len(model) else model
    found = Diagnosis([])
    for name, named in zip(model, names, strict=True):
        loaded = loaded_model(name, device, dtype, console)
        for case, chosen in cases_of(loaded, policies).items():
            called = case if len(model) == 1 else f"{named}, {case}"
            with progress_bars(console, counted=False) as bars:
                bar = bars.add_task(f"reading: {called}", total=None)

                def tell(done: int, total: int, bars: Progress = bars, bar: TaskID = bar) -> None:
                    bars.update(bar, completed=done, total=total)

                found += diagnosed(
                    loaded.model,
                    loaded.tokenizer,
                    length or None,
                    None if read == PROSE else read,
                    policy=chosen,
                    case=called,
                    rows=rows,
                    samples=samples,
                    tell=tell,
                )
    settings = {
        "models": ", ".join(model),
        "text": text,
        "rows": "the second half" if rows is None else rows,
        "samples": samples,
        "dtype": dtype,
        "device": str(loaded.model.device),
    }
    try:
        _write_tables(found, folder)
        with console.status("drawing the figures and the page"):
            rows_with_kinds = [asdict(head) | {"kind": kind} for head, kind in found.with_kinds()]
            title = f"What the heads of {' and '.join(names)} attend to"
            page = write_report(folder, rows_with_kinds, settings, title=title)
    except OSError as error:
        raise ValueError(f"{folder} cannot be written: {error}") from None
    for table in (_by_length(found), _by_kind(found)):
        console.print(table)
    console.print(f"Page, figures and tables: {escape(str(page))}", soft_wrap=True)


def _write_tables(found: Diagnosis, folder: Path) -> None:
    found.write_csv(folder / "heads.csv")
    with contextlib.suppress(ImportError):  # without pyarrow, the CSV holds the same
        found.write_parquet(folder / "heads.parquet")


def _by_length(found: Diagnosis) -> Table:
    table = Table(title="Means over all heads")
    for name in ("case", "tokens", *SHOWN.values()):
        table.add_column(name, justify="left" if name == "case" else "right")
    groups = dict.fromkeys((head.case, head.length) for head in found.heads)
    for case, length in groups:
        heads = [head for head in found.heads if (head.case, head.length) == (case, length)]
        means = [fmean(getattr(head, name) for head in heads) for name in SHOWN]
        table.add_row(escape(case), f"{length:,}", *(f"{mean:.3f}" for mean in means))
    table.caption = (
        "entropy in nats and as a share of ln n; the largest weight, those on the first token and "
        "on the 32 last; the largest logit less the smallest"
    )
    return table


def _by_kind(found: Diagnosis) -> Table:
    from sharpmax.hf.kinds import KINDS, kinds

    longest = max(head.length for head in found.heads)
    counts = Counter((case, kind) for (case, _, _), kind in kinds(found).items())
    cases = dict.fromkeys(case for case, _ in counts)
    table = Table(title=f"Heads by kind at {longest:,} tokens")
    table.add_column("kind")
    for case in cases:
        table.add_column(escape(case), justify="right")
    table.add_column("which means")
    for kind, meaning in KINDS.items():
        table.add_row(kind, *(str(counts[case, kind]) for case in cases), meaning)
    return table
