"""Results as a tidy CSV table, a row for each and a column for each field; shares in it."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from scipy import stats

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Row = TypeVar("Row", bound=DataclassInstance)


def write_csv(path: Path, kind: type[DataclassInstance], rows: Sequence[DataclassInstance]) -> None:
    """Write rows of one kind of dataclass; without any, the header alone."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(kind)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def read_csv(path: Path, kind: type[Row]) -> list[Row]:
    """Return the rows that `write_csv` wrote; an empty cell is None.

    Raises:
        ValueError: If they are not of this kind.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            return [kind(**{name: _value(cell) for name, cell in row.items()}) for row in rows]
    except (OSError, TypeError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{path} cannot be read as a table of {kind.__name__}s ({error}): move it away"
        ) from None


def _value(cell: str) -> str | float | None:
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(cell)
    return cell or None


def share_of(right: int, count: int) -> tuple[float, float, float]:
    """Return the share of right answers with its 95 % interval, by Wilson."""
    interval = stats.binomtest(right, count).proportion_ci(method="wilson")
    return right / count, float(interval.low), float(interval.high)
