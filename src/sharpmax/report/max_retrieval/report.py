"""The report of a run: its figures as files, and the page that shows them all."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import altair as alt

from sharpmax.report.chart import Chart, save
from sharpmax.report.max_retrieval.accuracy import accuracy, accuracy_panels
from sharpmax.report.max_retrieval.attention import (
    attention,
    attention_at_size,
    attention_sharpened,
    policies_with_attention,
    sharpened_policy,
)
from sharpmax.report.max_retrieval.by_size import following, legend_choice, size_parameter
from sharpmax.report.max_retrieval.dispersion import dispersion_panels, entropy
from sharpmax.report.max_retrieval.finding import accuracy_table, finding
from sharpmax.report.max_retrieval.fit import fit
from sharpmax.report.max_retrieval.tables import Tables
from sharpmax.report.max_retrieval.training import training, training_panels
from sharpmax.report.page import Page, Section, Slider

TITLE = "Finding the maximum among ever more items"


def write_report(
    folder: Path, tables: Tables, settings: Mapping[str, object], *, title: str = TITLE
) -> Path:
    """Write folder/figures/*.png and *.svg and folder/report.html; return the page's path.

    What a table does not hold is left out.
    """
    for name, chart in figures(tables).items():
        save(chart, folder / "figures", name)
    return page(tables, settings, title=title).write(folder / "report.html")


def figures(tables: Tables) -> dict[str, Chart]:
    """Return the figures that the tables have the data for, by name."""
    kept = policies_with_attention(tables)
    wanted: dict[str, tuple[object, Callable[[Tables], Chart]]] = {
        "attention": ("softmax" in kept, attention),
        "attention_sharpened": (sharpened_policy(tables), attention_sharpened),
        "accuracy": (tables.comparison, accuracy),
        "entropy": (tables.evaluation, entropy),
        "fit": (tables.fit or tables.curves, fit),
        "training": (tables.training, training),
    }
    return {name: draw(tables) for name, (data, draw) in wanted.items() if data}


def page(tables: Tables, settings: Mapping[str, object], *, title: str = TITLE) -> Page:
    """Return the page: the answer first, then what lies behind it."""
    sizes = tables.sizes
    start = sizes[len(sizes) // 4] if sizes else 0
    slider = Slider("Items in a set", sizes, start, unit="items") if sizes else None
    most_items = settings.get("most_items", 16)
    sections = [
        *_accuracy(tables, start, most_items),
        *_attention(tables, start),
        *_dispersion(tables, start),
    ]
    sections += [*_fit(tables, start), *_training(tables)]
    return Page(title, finding(tables), sections, slider, settings)


def _accuracy(tables: Tables, start: int, most_items: object) -> Iterable[Section]:
    if tables.comparison:
        limit = (
            "Argmax gives all weight to the item of the largest logit: sharpening without end. "
            "Little can be gained beyond it, by leaving some weight to the runners-up. "
        )
        yield Section(
            "How often the maximum is found",
            f"The networks were trained on sets of at most {most_items} items and never saw larger "
            "ones. "
            + (limit if "argmax" in tables.lines else "")
            + "Click policies in a legend to single them out, and again to let them go.",
            _following(accuracy_panels, tables, start),
            accuracy_table(tables),
        )


def _attention(tables: Tables, start: int) -> Iterable[Section]:
    policies = policies_with_attention(tables)
    if policies:
        yield Section(
            "Where attention goes",
            "Each row is a set and shows the weights of its 16 items of largest key norm. A sharp "
            "head fills the cell of the true maximum (the dot) and leaves the others empty. Move "
            "the slider: as the set grows, weight drains from the row into the thousands of items "
            "that are not shown.",
            [attention_at_size(tables, policy, start) for policy in policies],
        )


def _dispersion(tables: Tables, start: int) -> Iterable[Section]:
    if tables.evaluation:
        yield Section(
            "Why: attention disperses",
            "With logits spread by δ, no weight among n items can exceed exp(βδ)/n (Lemma 2.1). "
            "At β = 1 the bound falls with n whatever was learnt, and the entropy climbs towards "
            "ln n. A policy raises β, and with it the bound.",
            _following(dispersion_panels, tables, start),
        )


def _fit(tables: Tables, start: int) -> Iterable[Section]:
    if tables.fit or tables.curves:
        size = size_parameter(start)
        at_size = alt.when("datum.size == size").then(alt.value(0.9)).otherwise(alt.value(0.2))
        chart = fit(tables, at_size).properties(width="container").add_params(size)
        yield Section(
            "Which temperature an entropy asks for",
            "Each point is an input: the entropy of its attention, and the β that served its "
            "maximum best. The published polynomial turns down again at high entropies, where "
            "dispersion is worst; the monotone fit cannot. Points of the slider's size stand out.",
            [chart],
        )


def _training(tables: Tables) -> Iterable[Section]:
    if tables.training:
        yield Section(
            "Training",
            "The mean over seeds, and the range between the lowest and the highest.",
            [panel.properties(width="container", height=180) for panel in training_panels(tables)],
        )


def _following(
    panels: Callable[[Tables, alt.Parameter], list[alt.LayerChart]], tables: Tables, start: int
) -> list[alt.LayerChart]:
    return [following(panel, tables.sizes, start) for panel in panels(tables, legend_choice())]
