"""Rows of a table as figures read them: their means, some of them, and their numbers as text."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, TypeAlias

Row: TypeAlias = Mapping[str, Any]


def mean_by(rows: Iterable[Row], keys: Sequence[str], *fields: str) -> list[dict[str, Any]]:
    """Return the means of `fields` over the rows that agree in `keys`."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return [
        {
            **dict(zip(keys, group, strict=True)),
            **{name: mean([row[name] for row in members]) for name in fields},
        }
        for group, members in groups.items()
    ]


def mean(numbers: Iterable[float]) -> float | None:
    """Return the mean of what is finite, or None: a page's data can hold neither NaN nor ∞."""
    finite = [float(number) for number in numbers if math.isfinite(number)]
    return fmean(finite) if finite else None


def text(number: float | None, form: str) -> str:
    """Return a number as a tooltip shows it; a dash where there is none."""
    return "–" if number is None else format(number, form)


def signed(number: float, form: str) -> str:
    """Return a number with its sign, and with none where it rounds to 0."""
    told = format(abs(number), form)
    if not any(digit in told for digit in "123456789"):
        return told
    return f"{'−' if number < 0 else '+'}{told}"


def thinned(rows: Sequence[Row], most: int) -> list[Row]:
    """Return at most `most` rows, taken evenly, the first and the last among them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]
