"""The tables that a run of max retrieval leaves behind, as the figures read them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sharpmax.report import style
from sharpmax.report.rows import Row

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


def spoken(policy: str) -> str:
    """Return what a policy is called in a sentence."""
    return SPOKEN.get(policy, policy)


def headed(policy: str) -> str:
    """Return what a policy is called where a line begins."""
    name = spoken(policy)
    return name[:1].upper() + name[1:]
