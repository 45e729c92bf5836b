"""Results as a tidy CSV table: a row for each, a column for each of its fields."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def write_csv(path: Path, kind: type[DataclassInstance], rows: Sequence[DataclassInstance]) -> None:
    """Write rows of one kind of dataclass; without any, the header alone."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(kind)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
