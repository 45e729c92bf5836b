"""The report of a calibration: its figures as files, and the page that shows them all."""

from collections.abc import Mapping
from pathlib import Path

import altair as alt

from sharpmax.report.calibration.comparison import comparison, comparison_table
from sharpmax.report.calibration.frontier import by_heads, frontier
from sharpmax.report.calibration.heads import head_maps
from sharpmax.report.calibration.tables import Tables
from sharpmax.report.chart import Chart, save
from sharpmax.report.page import Page, Section, Table

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
    """Return what the calibration found, in two sentences."""
    plain = tables.plain["retrieval"]
    if tables.kept is None:
        best = max(tables.points, key=lambda point: point["retrieval"])
        return (
            f"No policy was kept. The original model finds {plain:.0%} of the answers; the best "
            f"policy, {best['name']}, finds {best['retrieval']:.0%} and its loss on text is "
            f"{best['text_cost']:+.2%}."
        )
    kept = tables.point(tables.kept)
    return (
        f"With β changed in {kept['heads']} heads, the model finds {kept['retrieval']:.0%} of the "
        f"answers in place of {plain:.0%}, with templates that nothing was fitted to. Its loss on "
        f"text changes by {kept['text_cost']:+.2%}."
    )


def _comparison(tables: Tables) -> Section | None:
    chart = comparison(tables)
    if chart is None:
        return None
    return Section(
        "Beside other policies",
        "All met the same prompts and texts. The templates, the keys and the values of the prompts "
        "are not among those that were fitted to, and neither is the text. “calibrated” is the "
        "policy that is kept, or else the last.",
        [chart.properties(width="container", height=HEIGHT)],
        comparison_table(tables),
    )


def _frontier(tables: Tables) -> Section:
    charts = [frontier(tables), by_heads(tables)]
    asked = "these prompts" if tables.scores else "prompts of other templates, looked at on the way"
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
        "it rest more surely, or less.",
        [chart.properties(width="container") for chart in head_maps(tables)],
    )


def _points(tables: Tables) -> Section:
    fields = ("name", "heads", "steps", "retrieval", "answer_loss", "text_cost", "divergence")
    forms = ("", "", "", ".1%", ".3f", "+.2%", ".4f")
    rows = [
        [format(point[field], form) for field, form in zip(fields, forms, strict=True)]
        for point in tables.points
    ]
    names = [str(point["name"]) for point in tables.points]
    strong = {(names.index(tables.kept), 0)} if tables.kept is not None else set()
    header = ["policy", "heads", "steps", "found", "loss of answers", "text", "divergence"]
    caption = "Policies along the way, on prompts and text that were not fitted to"
    return Section("All of them", table=Table(caption, header, rows, strong))
