"""What a run found, in a sentence and in a table."""

from sharpmax.report import style
from sharpmax.report.max_retrieval.accuracy import p_value_text
from sharpmax.report.max_retrieval.tables import Tables, headed, spoken
from sharpmax.report.page import Table
from sharpmax.report.rows import Row


def finding(tables: Tables) -> str:
    """Return the answer at the largest size: softmax, the best policy, and argmax."""
    if not tables.comparison:
        return "How sharp attention stays on sets far larger than those it was trained on."
    size = max(int(row["size"]) for row in tables.comparison)
    at_size = {str(row["policy"]): row for row in tables.comparison if row["size"] == size}
    limit = at_size.pop("argmax", None)
    softmax = at_size.pop("softmax", None)
    best = max(at_size.values(), key=lambda row: float(row["accuracy"]), default=None)
    shown = [row for row in (softmax, best) if row is not None]
    if not shown:
        return f"At {size:,} items attention to the largest logit alone gives {_percent(limit)}."
    first, *others = shown
    sentence = (
        f"At {size:,} items {_name(first)} finds the maximum {_percent(first)} of the time"
        + "".join(f", {_name(other)} {_percent(other)}" for other in others)
        + (f", and sharpening without end {_percent(limit)}." if limit else ".")
    )
    return sentence + _certainty(tables, best if softmax else None)


def accuracy_table(tables: Tables) -> Table:
    """Return accuracies in per cent, a row a policy and a column a size, the best in bold.

    Argmax and the paper's own rows stand below, and do not compete.
    """
    cells = {(str(r["policy"]), int(r["size"])): float(r["accuracy"]) for r in tables.comparison}
    sizes = sorted({size for _, size in cells})
    policies = style.ordered(policy for policy, _ in cells)
    published = {(str(r["policy"]), int(r["size"])): float(r["accuracy"]) for r in tables.published}
    others = style.ordered(policy for policy, size in published if size in sizes)
    rows = [_row(_title(policy), cells, policy, sizes) for policy in policies]
    rows += [_row(f"{policy}, as published", published, policy, sizes) for policy in others]
    contenders = [policy for policy in policies if policy != "argmax"]
    strong = {
        (row, column)
        for column, size in enumerate(sizes, 1)
        for row in range(len(contenders))
        if rows[row][column] == _best(cells, contenders, size)
    }
    seeds = f", mean of {tables.seeds} seeds" if tables.seeds > 1 else ""
    return Table(
        caption=f"Accuracy in per cent by items in the set{seeds}; the best in bold",
        header=["policy", *(f"{size:,}" for size in sizes)],
        rows=rows,
        strong=strong if len(contenders) > 1 else (),
        quiet=range(len(contenders), len(rows)),
    )


def _row(
    title: str, cells: dict[tuple[str, int], float], policy: str, sizes: list[int]
) -> list[str]:
    return [title, *(_cell(cells.get((policy, size))) for size in sizes)]


def _best(cells: dict[tuple[str, int], float], policies: list[str], size: int) -> str:
    return _cell(max((cells.get((policy, size), -1.0) for policy in policies), default=None))


def _cell(accuracy: float | None) -> str:
    return "–" if accuracy is None else f"{100 * accuracy:.1f}"


def _title(policy: str) -> str:
    return "argmax, the limit" if policy == "argmax" else policy


def _name(row: Row) -> str:
    return spoken(str(row["policy"]))


def _percent(row: Row | None) -> str:
    return f"{100 * float(row['accuracy']):.0f} %" if row else "unknown"


def _certainty(tables: Tables, best: Row | None) -> str:
    """Return how far to trust it: the number of seeds and the test against softmax."""
    if tables.seeds < 2:
        return "\n\nOne seed: intervals and tests need several." if tables.seeds else ""
    text = f"\n\nMeans over {tables.seeds} seeds."
    p = p_value_text(best["p_value"]) if best else "–"
    if best is None or p == "–":
        return text
    sign = "" if p.startswith("<") else "= "
    name = headed(str(best["policy"]))
    return text + f" {name} against softmax: p {sign}{p}, paired t-test."
