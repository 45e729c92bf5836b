"""The report of CLRS-Text: its figures as files, and the page that shows them all."""

from collections.abc import Mapping
from pathlib import Path

from sharpmax.report.chart import Chart, save
from sharpmax.report.clrs.entropy import entropy
from sharpmax.report.clrs.profile import profile
from sharpmax.report.clrs.tables import Tables
from sharpmax.report.page import Page, Section, Table

WIDTH, HEIGHT = 560, 320
TITLE = "Algorithms at sizes never trained on"


def write_report(folder: Path, tables: Tables, settings: Mapping[str, object]) -> Path:
    """Write folder/figures/*.png and *.svg and folder/report.html; return the page's path."""
    for name, chart in figures(tables).items():
        save(chart, folder / "figures", name)
    return page(tables, settings).write(folder / "report.html")


def figures(tables: Tables) -> dict[str, Chart]:
    """Return the figures by name."""
    found: dict[str, Chart] = {"profile": profile(tables)}
    drawn = entropy(tables)
    if drawn is not None:
        found["entropy"] = drawn.properties(width=WIDTH, height=HEIGHT)
    return found


def page(tables: Tables, settings: Mapping[str, object]) -> Page:
    """Return the page: the answer first."""
    sections = [_summary(tables), _profile(tables), _entropy(tables), _all(tables)]
    return Page(TITLE, finding(tables), [s for s in sections if s is not None], None, settings)


def finding(tables: Tables) -> str:
    """Return what was found, in a sentence or two."""
    within = {row["case"]: row for row in tables.pooled("case", rows=tables.within())}
    beyond = {row["case"]: row for row in tables.pooled("case", rows=tables.beyond())}
    first, *_ = tables.cases
    parts = []
    if first in within:
        parts.append(
            f"{_upper(first)} answers {within[first]['share']:.0%} rightly at the sizes that it "
            "was trained on"
        )
    if first in beyond:
        share = f"{beyond[first]['share']:.0%}"
        alone = f"{_upper(first)} answers {share} rightly beyond the sizes that it was trained on"
        parts.append(f"{share} beyond them" if parts else alone)
    told = " and ".join(parts) + "." if parts else ""
    outcomes = tables.outcomes()
    for case, by_algorithm in outcomes.items():
        won, tied, lost = (
            list(by_algorithm.values()).count(kind) for kind in ("won", "tied", "lost")
        )
        if case in beyond:
            known = f"{within[case]['share']:.0%} and " if case in within else ""
            told += (
                f" {_upper(case)}: {known}{beyond[case]['share']:.0%} beyond; of "
                f"{len(by_algorithm)} algorithms {won} won, {tied} tied, {lost} lost."
            )
    return told.strip()


def summary_table(tables: Tables) -> Table:
    """Return a row a case: at the sizes trained on, beyond them, and the algorithms won."""
    within = {row["case"]: row for row in tables.pooled("case", rows=tables.within())}
    beyond = {row["case"]: row for row in tables.pooled("case", rows=tables.beyond())}
    outcomes = tables.outcomes()
    rows = []
    for case in tables.cases:
        of = list(outcomes.get(case, {}).values())
        counts = [str(of.count(kind)) if of else "–" for kind in ("won", "tied", "lost")]
        seeds = len({row["seed"] for row in tables.answers if row["case"] == case})
        too_long = sum(row["too_long"] for row in tables.answers if row["case"] == case)
        shares = _cell(within.get(case)), _cell(beyond.get(case))
        rows.append([case, str(seeds), *shares, *counts, f"{too_long:,}"])
    header = ["case", "seeds", "sizes trained on", "beyond", "won", "tied", "lost", "too long"]
    caption = (
        "Right answers with 95 % intervals; algorithms won, tied and lost beyond the sizes trained "
        f"on, beside {tables.cases[0]}, as if all seeds were one model; questions that did not fit "
        "into the context"
    )
    return Table(caption, header, rows)


def _summary(tables: Tables) -> Section:
    return Section(
        "In short",
        "An answer is right if every character of its result is, whatever steps come before it. "
        "Lines of a case are pooled over seeds.",
        table=summary_table(tables),
    )


def _profile(tables: Tables) -> Section:
    return Section("By algorithm and size", charts=[profile(tables)])


def _entropy(tables: Tables) -> Section | None:
    chart = entropy(tables)
    if chart is None:
        return None
    return Section(
        "Dispersion",
        "Where it grows with the size, attention spreads over more and more of the input.",
        [chart.properties(width="container", height=HEIGHT)],
    )


def _all(tables: Tables) -> Section:
    found = {
        (row["algorithm"], row["case"], row["size"]): row
        for row in tables.pooled("algorithm", "case", "size")
    }
    sizes = sorted({size for _, _, size in found})
    rows = [
        [algorithm, case, *(_cell(found.get((algorithm, case, size))) for size in sizes)]
        for algorithm in tables.algorithms
        for case in tables.cases
    ]
    header = ["algorithm", "case", *(f"size {size}" for size in sizes)]
    return Section("All of them", table=Table("Right answers, seeds pooled", header, rows))


def _cell(row: Mapping[str, float] | None) -> str:
    if row is None:
        return "–"
    return f"{row['share']:.0%} ({100 * row['low']:.0f}–{100 * row['high']:.0f})"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
