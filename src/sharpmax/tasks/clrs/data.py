"""Data sets of CLRS-Text on disk: made in parallel, the same to the byte, in Arrow files.

A folder holds `clrs.json`, which tells what it was made of, and a file for every algorithm, size
and seed, which `datasets.Dataset.from_file` reads as well.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa

from sharpmax.files import written_whole
from sharpmax.tasks.clrs.generator import (
    DECIMALS,
    Sample,
    published,
    require_possible,
    samples,
    version,
)

ABOUT = "clrs.json"
SCHEMA = pa.schema(
    [
        ("algorithm", pa.string()),
        ("size", pa.int32()),
        ("question", pa.string()),
        ("answer", pa.string()),
    ]
)

Tell = Callable[[str, int], None]
"""Told which file is there, and how many samples it has."""


@dataclass(frozen=True)
class Recipe:
    """What a data set is made of.

    Attributes:
        sizes: By algorithm.
        seeds: Of the samples.
        each: How many samples of every algorithm, size and seed.
        trace: Whether the steps of the algorithm come before its result, as in the published data.
    """

    sizes: Mapping[str, tuple[int, ...]]
    seeds: tuple[int, ...] = (0,)
    each: int = 100
    trace: bool = True

    def __post_init__(self) -> None:
        sizes = {name: tuple(sorted({*self.sizes[name]})) for name in sorted(self.sizes)}
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "seeds", tuple(dict.fromkeys(self.seeds)))
        if not sizes or not all(sizes.values()) or not self.seeds:
            raise ValueError("algorithms, sizes and seeds must be given")
        if self.each < 1:
            raise ValueError(f"each must be at least 1, got {self.each}")
        for seed in self.seeds:
            if not 0 <= seed < 2**32:
                raise ValueError(f"seed must be from 0 to {2**32 - 1:,}, got {seed}")
        for algorithm, some in sizes.items():
            for size in some:
                require_possible(algorithm, size)

    @classmethod
    def as_published(cls, split: str, algorithms: tuple[str, ...] = (), **changes: Any) -> Recipe:
        """Return that of the published "train" or "val", of some algorithms or of all thirty.

        Raises:
            ValueError: If there is no such algorithm.
        """
        found = published(split)
        for algorithm in algorithms:
            if algorithm not in found.sizes:
                known = ", ".join(found.sizes)
                raise ValueError(f"algorithm must be one of {known}, got {algorithm!r}")
        wanted = algorithms or tuple(found.sizes)
        given: dict[str, Any] = {"seeds": found.seeds, "each": found.each} | changes
        return cls({name: found.sizes[name] for name in wanted}, **given)

    @property
    def files(self) -> dict[str, tuple[str, int, int]]:
        """The files by name, with the algorithm, the size and the seed of each."""
        return {
            f"{algorithm}-{size}-{seed}.arrow": (algorithm, size, seed)
            for algorithm, sizes in self.sizes.items()
            for size in sizes
            for seed in self.seeds
        }

    def about(self) -> dict[str, Any]:
        """Return everything that the bytes of the files depend on."""
        recipe = json.loads(json.dumps(asdict(self)))
        made_by = {"decimals": DECIMALS, "dm-clrs": version()}
        return {"recipe": recipe, **made_by, "files": list(self.files)}


def generate(
    recipe: Recipe,
    folder: str | Path,
    workers: int | None = None,
    tell: Tell = lambda _, __: None,
) -> None:
    """Make a data set; what is there already of the same recipe stays.

    Args:
        recipe: What to make.
        folder: Where.
        workers: Processes; as many as there are cores if None.
        tell: Told after every file.

    Raises:
        ValueError: If the folder holds a data set of another recipe, or of another version.
    """
    folder = Path(folder)
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if (folder / ABOUT).exists():
        held = about(folder)
        if held != recipe.about():
            changed = _difference(held, recipe.about())
            raise ValueError(
                f"{folder} holds CLRS-Text of another {changed}: choose another folder"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / ABOUT, json.dumps(recipe.about(), indent=1).encode())
    except OSError as error:
        raise ValueError(f"{folder} cannot be written: {error}") from None
    missing = {}
    for name, what in recipe.files.items():
        if (folder / name).exists():
            tell(name, recipe.each)
        else:
            missing[name] = what
    count = min(len(missing), workers or os.cpu_count() or 1)
    if count <= 1:
        for name, what in missing.items():
            _make(folder / name, *what, recipe)
            tell(name, recipe.each)
        return
    # Large inputs first, so that no process is left alone with one in the end.
    ordered = sorted(missing.items(), key=lambda item: -item[1][1])
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        made = {pool.submit(_make, folder / name, *what, recipe): name for name, what in ordered}
        try:
            for future in as_completed(made):
                future.result()
                tell(made[future], recipe.each)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def about(folder: str | Path) -> dict[str, Any]:
    """Return what a data set was made of.

    Raises:
        ValueError: If the folder holds none.
    """
    path = Path(folder) / ABOUT
    if not path.exists():
        raise ValueError(f"{folder} holds no CLRS-Text: sharpmax clrs generate {folder}")
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not {"recipe", "dm-clrs", "files"} <= found.keys():
            raise ValueError("it is not whole")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}): generate the data anew, into another folder"
        ) from None
    return found


def load(folder: str | Path) -> pa.Table:
    """Return a data set: algorithm, size, question and answer of every sample.

    Raises:
        ValueError: If the folder holds none, or not the whole of it.
    """
    folder, tables = Path(folder), []
    told = about(folder)
    for name in told["files"]:
        again = "sharpmax clrs generate makes it again"
        try:
            with pa.memory_map(str(folder / name)) as source:
                tables.append(pa.ipc.open_stream(source).read_all())
        except FileNotFoundError:
            raise ValueError(f"{folder / name} is missing: {again}") from None
        except (OSError, pa.ArrowInvalid) as error:
            raise ValueError(
                f"{folder / name} cannot be read ({error}): remove it, and {again}"
            ) from None
        count, wanted = tables[-1].num_rows, told["recipe"]["each"]
        if count != wanted:
            raise ValueError(
                f"{folder / name} holds {count:,} samples, and {ABOUT} tells of {wanted:,}: "
                "generate the data anew, into another folder"
            )
    return pa.concat_tables(tables)


def _make(path: Path, algorithm: str, size: int, seed: int, recipe: Recipe) -> None:
    """Write the samples of one algorithm, size and seed."""
    stream = samples(algorithm, size, seed, trace=recipe.trace)
    drawn = list(itertools.islice(stream, recipe.each))
    columns = dict(zip(Sample._fields, zip(*drawn, strict=True), strict=True))
    table = pa.table({name: list(values) for name, values in columns.items()}, schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(table)
    _write(path, sink.getvalue().to_pybytes())


def _write(path: Path, content: bytes) -> None:
    with written_whole(path) as fresh:
        fresh.write_bytes(content)


def _difference(held: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Return the first thing in which two data sets differ."""
    if held["dm-clrs"] != wanted["dm-clrs"]:
        return f"version, dm-clrs {held['dm-clrs']}"
    for name, value in wanted["recipe"].items():
        if held["recipe"].get(name) != value:
            return f"recipe ({name} differ)"
    return "recipe"
