"""One self-contained page of text, tables and interactive charts, for any browser, offline.

Vega, the charts and their data lie in the file itself, and its security policy forbids every
request. A slider may drive a parameter of several charts at once: a chart takes part by having
a Vega parameter of the slider's name.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import vl_convert

from sharpmax.report import style
from sharpmax.report.chart import VEGA_LITE, Chart, specification
from sharpmax.report.page import html


@dataclass(frozen=True)
class Table:
    """Text in rows and columns: the first column names the rows, the others hold numbers.

    Args:
        caption: What the table shows.
        header: A name for each column.
        rows: The cells, formatted.
        strong: Cells to set in bold, as (row, column).
        quiet: Rows to set back, such as those of another's results.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: Collection[tuple[int, int]] = ()
    quiet: Collection[int] = ()


@dataclass(frozen=True)
class Section:
    """A heading, text whose paragraphs are parted by blank lines, then a table and charts.

    Charts stand side by side where there is room for two, and below each other where there is
    not: give panels as charts of their own, with `width="container"`.
    """

    title: str
    text: str = ""
    charts: Sequence[Chart] = ()
    table: Table | None = None


@dataclass(frozen=True)
class Slider:
    """One control for all charts that have a parameter of this name.

    Args:
        label: What is chosen, in words.
        values: The values to choose from, in order.
        start: The one that is chosen at first.
        parameter: The Vega parameter that it drives.
        unit: What stands behind the value, such as "items".
    """

    label: str
    values: Sequence[int]
    start: int
    parameter: str = "size"
    unit: str = ""

    def __post_init__(self) -> None:
        if self.start not in self.values:
            raise ValueError(f"start must be one of the values {self.values}, got {self.start}")


@dataclass(frozen=True)
class Page:
    """A page: `lead` is the answer in a sentence or two, `settings` go to the foot."""

    title: str
    lead: str
    sections: Sequence[Section]
    slider: Slider | None = None
    settings: Mapping[str, object] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        """Write the page as one HTML file and return its path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.html(), encoding="utf-8")
        return path

    def html(self) -> str:
        """Return the page as HTML."""
        charts = [chart for section in self.sections for chart in section.charts]
        drawn, datasets = _apart([specification(chart) for chart in charts])
        content = {
            "charts": drawn,
            "datasets": datasets,
            "config": style.CONFIG,
            "dark": style.DARK,
            "slider": self.slider
            and {
                "parameter": self.slider.parameter,
                "values": list(self.slider.values),
                "unit": self.slider.unit,
            },
        }
        return Template(_asset("page.html")).substitute(
            title=escape(self.title),
            lead=html.paragraphs(self.lead),
            slider=html.slider(self.slider) if self.slider else "",
            sections=html.sections(self.sections),
            footer=html.footer(self.settings),
            style=_colours() + _asset("page.css"),
            vega=html.script(_vega() if charts else ""),
            content=html.script_data(json.dumps(content, separators=(",", ":"), allow_nan=False)),
            script=html.script(_asset("page.js")),
        )


def _apart(specs: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return charts that only name their data, and the data: what several draw is kept once.

    Altair names data by their content, so that the same rows have the same name.
    """
    datasets: dict[str, Any] = {}
    charts = []
    for spec in specs:
        held = spec.get("datasets", {})
        charts.append({**spec, "datasets": list(held)})
        for name in held.keys() - datasets.keys():
            datasets[name] = json.loads(held[name]) if isinstance(held[name], str) else held[name]
    return charts, datasets


def _colours() -> str:
    """Return the palette as CSS variables, each with its light and its dark value."""
    names = ("ink", "muted", "grid", "paper", "card", "accent")
    pairs = [(name, getattr(style, name.upper())) for name in names]
    variables = "".join(f"--{n}:light-dark({light},{style.DARK[light]});" for n, light in pairs)
    return f":root{{{variables}}}\n"


@cache
def _vega() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script; it takes seconds to bundle them."""
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", VEGA_LITE))


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
