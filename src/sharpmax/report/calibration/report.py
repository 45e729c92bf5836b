"""The report of a calibration: its figures as files, and the page that shows them all."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import altair as alt

from sharpmax.report.calibration.comparison import comparison, comparison_table
from sharpmax.report.calibration.frontier import by_heads, frontier
from sharpmax.report.calibration.heads import head_maps
from sharpmax.report.calibration.tables import PLAIN, Tables
from sharpmax.report.chart import Chart, save
from sharpmax.report.page import Page, Section, Table
from sharpmax.report.rows import signed

WIDTH, HEIGHT = 560, 320


def write_report(folder: Path, tables: Tables, settings: Mapping[str, object], title: str) -> Path:
    """Write folder/figures/*.png and *.svg and folder/report.html; return the page's path."""
    for name, chart in figures(tables).items():
        save(chart, folder / "figures", name)
    return page(tables, settings, title).write(folder / "report.html")


def figures(tables: Tables) -> dict[str, Chart]:
    """Return the figures by name."""
    drawn = {
        "frontier": frontier(tables),
        "fewer_heads": by_heads(tables),
        "comparison": comparison(tables),
    }
    found: dict[str, Chart] = {
        name: chart.properties(width=WIDTH, height=HEIGHT)
        for name, chart in drawn.items()
        if chart is not None
    }
    maps = [chart.properties(width=WIDTH) for chart in head_maps(tables)]
    return found | {"heads": alt.VConcatChart(vconcat=maps).resolve_scale(color="independent")}


def page(tables: Tables, settings: Mapping[str, object], title: str) -> Page:
    """Return the page: the answer first."""
    sections = [_comparison(tables), _frontier(tables), _heads(tables), _points(tables)]
    return Page(title, finding(tables), [s for s in sections if s is not None], None, settings)


def finding(tables: Tables) -> str:
    """Return what the calibration found, in two or three sentences."""
    chosen = tables.point(tables.chosen)
    begin = f"{chosen['heads']} heads are changed by the policy that is kept."
    if tables.kept is None:
        begin = (
            "No policy was kept: none finds more than the original model at the cost that text "
            f"might pay. The one that finds most is {tables.chosen}."
        )
    shares = {(row["case"], row["length"]): row for row in tables.shares()}
    if not tables.are_compared:
        return (
            f"{begin} It finds {chosen['retrieval']:.0%} of the answers in place of "
            f"{tables.plain['retrieval']:.0%}, of the prompts that it was chosen by, and the loss "
            f"on text changes by {signed(chosen['text_cost'], '.2%')}."
        )
    paid, told = tables.paid(), []
    for length in sorted({length for case, length in shares if (case, length) in paid}):
        ours, plain = shares.get((tables.chosen, length)), shares.get((PLAIN, length))
        if ours is not None and plain is not None:
            told.append(
                f"{ours['value']:.0%} ({ours['low']:.0%} to {ours['high']:.0%}) in place of "
                f"{plain['value']:.0%} at {length:,} tokens, where the loss on text changes by "
                f"{signed(paid[tables.chosen, length], '.1%')}"
            )
    count = next(row["samples"] for row in shares.values())
    return (
        f"{begin} Of {count:,} answers a length, with templates, keys and values that "
        f"nothing was fitted to or chosen by, it finds {'; '.join(told)}."
    )


def _comparison(tables: Tables) -> Section | None:
    chart = comparison(tables)
    if chart is None:
        return None
    return Section(
        "Beside other policies",
        "All met the same prompts and texts. The templates, the keys and the values of the prompts "
        "are not among those that were fitted to, and neither is the text. “calibrated” is the "
        "policy that is kept, or else the one that finds most.",
        [chart.properties(width="container", height=HEIGHT)],
        comparison_table(tables),
    )


def _frontier(tables: Tables) -> Section:
    charts = [frontier(tables), by_heads(tables)]
    asked = "these prompts" if tables.are_compared else "the prompts that were looked at on the way"
    return Section(
        "What it costs",
        "A dot is the best policy of one cost that text might pay while fitting, or of one number "
        f"of heads, asked {asked}; “further” goes on from the best cost, every head alike. To the "
        "right text pays more. The policy that is kept is the one that finds most within the cost "
        "that was allowed in the end, of what was looked at on the way.",
        [c.properties(width="container", height=HEIGHT) for c in charts if c is not None],
    )


def _heads(tables: Tables) -> Section:
    return Section(
        "Which heads it changed",
        "ln β above 0 makes a head sharper than it was trained to be, below 0 blunter. γ above 0 "
        "lets it rest more on the first key, its sink, and below 0 less; a power above 1 makes "
        "it rest more surely, or less. Each map has a scale of its own.",
        [chart.properties(width="container") for chart in head_maps(tables)],
    )


def _points(tables: Tables) -> Section:
    columns: dict[str, tuple[str, Callable[[Any], str]]] = {
        "policy": ("name", str),
        "heads": ("heads", str),
        "steps": ("steps", str),
        "found": ("retrieval", "{:.1%}".format),
        "of your own": ("own", "{:.1%}".format),
        "loss of answers": ("answer_loss", "{:.3f}".format),
        "text": ("text_cost", lambda cost: signed(cost, ".2%")),
        "divergence": ("divergence", "{:.4f}".format),
    }
    plain = {"name": PLAIN, "heads": 0, "steps": 0, "text_cost": 0.0, **tables.plain}
    policies = [plain, *tables.points]
    shown = {
        title: column
        for title, column in columns.items()
        if all(policy.get(column[0]) is not None for policy in policies)
    }
    rows = [[form(policy[field]) for field, form in shown.values()] for policy in policies]
    names = [str(policy["name"]) for policy in policies]
    strong = {(names.index(tables.kept), 0)} if tables.kept is not None else set()
    caption = "Policies along the way, on prompts and text that were not fitted to"
    return Section("All of them", table=Table(caption, [*shown], rows, strong))
