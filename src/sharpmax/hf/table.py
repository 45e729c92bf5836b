"""Results as a tidy CSV table, a row for each and a column for each field; shares in it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from scipy import stats

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def write_csv(path: Path, kind: type[DataclassInstance], rows: Sequence[DataclassInstance]) -> None:
    """Write rows of one kind of dataclass; without any, the header alone."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(kind)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def share_of(right: int, count: int) -> tuple[float, float, float]:
    """Return the share of right answers with its 95 % interval, by Wilson."""
    interval = stats.binomtest(right, count).proportion_ci(method="wilson")
    return right / count, float(interval.low), float(interval.high)
