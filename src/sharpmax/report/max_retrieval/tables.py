"""The tables that a run of max retrieval leaves behind, as the figures read them."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeAlias

from sharpmax.report import style

Row: TypeAlias = Mapping[str, Any]

# What a policy is called in a sentence, where its name alone would not do.
SPOKEN = {"softmax": "plain softmax", "paper": "the paper's policy", "argmax": "argmax"}


@dataclass(frozen=True)
class Tables:
    """The rows of each table; any of them may be empty.

    Args:
        evaluation: size, seed, policy, accuracy, entropy, weight (the mean on the true maximum),
            beta, spread, bound (exp(βδ)/n, at most 1).
        comparison: size, policy, accuracy, low, high (the 95 % interval over seeds), difference
            (from softmax), p_value (None with one seed).
        attention: policy, size, set, rank (1 for the largest key norm), weight, is_maximum.
        fit: size, entropy, beta: the β that served an input best.
        curves: policy ("published", "fitted", "monotone"), entropy, beta.
        training: step, seed, loss, accuracy.
        published: policy ("softmax", "paper"), size, accuracy: the paper's own table.
    """

    evaluation: Sequence[Row] = ()
    comparison: Sequence[Row] = ()
    attention: Sequence[Row] = ()
    fit: Sequence[Row] = ()
    curves: Sequence[Row] = ()
    training: Sequence[Row] = ()
    published: Sequence[Row] = ()

    @property
    def sizes(self) -> list[int]:
        """Every size that was tested, in order."""
        rows = (*self.evaluation, *self.comparison, *self.attention)
        return sorted({int(row["size"]) for row in rows})

    @property
    def seeds(self) -> int:
        """How many networks were tested."""
        return len({row["seed"] for row in self.evaluation})

    @property
    def lines(self) -> dict[str, style.Line]:
        """How every policy is drawn, the same in all figures."""
        rows = (*self.evaluation, *self.comparison, *self.attention)
        return style.lines(str(row["policy"]) for row in rows)

    def lines_of(self, rows: Iterable[Row]) -> dict[str, style.Line]:
        """How the policies that occur in `rows` are drawn."""
        present = {row["policy"] for row in rows}
        return {policy: line for policy, line in self.lines.items() if policy in present}


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


def spoken(policy: str) -> str:
    """Return what a policy is called in a sentence."""
    return SPOKEN.get(policy, policy)


def headed(policy: str) -> str:
    """Return what a policy is called where a line begins."""
    name = spoken(policy)
    return name[:1].upper() + name[1:]


def text(number: float | None, form: str) -> str:
    """Return a number as a tooltip shows it; a dash where there is none."""
    return "–" if number is None else format(number, form)


def thinned(rows: Sequence[Row], most: int) -> list[Row]:
    """Return at most `most` rows, taken evenly, the first and the last among them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]
