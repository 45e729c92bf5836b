"""The pieces of a page as HTML. What they are given is plain text, and is escaped here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import count
from typing import TYPE_CHECKING

import sharpmax

if TYPE_CHECKING:
    from sharpmax.report.page import Section, Slider, Table


def sections(parts: Sequence[Section]) -> str:
    """Return the sections, with a box for every chart; boxes are numbered throughout."""
    number = count()
    return "\n".join(
        f"<section>\n<h2>{escape(part.title)}</h2>\n{paragraphs(part.text)}\n"
        + (table(part.table) if part.table else "")
        + _boxes([next(number) for _ in part.charts])
        + "</section>"
        for part in parts
    )


def _boxes(numbers: Sequence[int]) -> str:
    boxes = "".join(f'<div class="chart" data-chart="{number}"></div>' for number in numbers)
    return f'<div class="charts">{boxes}</div>\n' if numbers else ""


def table(content: Table) -> str:
    """Return a table that scrolls within itself where it is wider than the page."""

    def cell(text: str, row: int, column: int) -> str:
        inner = escape(text)
        if (row, column) in content.strong:
            inner = f"<strong>{inner}</strong>"
        return f'<th scope="row">{inner}</th>' if column == 0 else f"<td>{inner}</td>"

    caption = escape(content.caption)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in content.header)
    body = "\n".join(
        ('<tr class="quiet">' if row in content.quiet else "<tr>")
        + "".join(cell(text, row, column) for column, text in enumerate(cells))
        + "</tr>"
        for row, cells in enumerate(content.rows)
    )
    return (
        f'<div class="table" role="region" tabindex="0" aria-label="{caption}">'
        f"<table><caption><span>{caption}</span></caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table></div>\n"
    )


def slider(control: Slider) -> str:
    """Return the slider, out of sight where there is but one value to choose."""
    values = control.values
    return (
        f'<form class="slider"{" hidden" if len(values) < 2 else ""}>'
        f'<label for="slider">{escape(control.label)}</label>'
        f'<span class="end" aria-hidden="true">{values[0]:,}</span>'
        '<input id="slider" type="range" min="0" step="1" autocomplete="off" '
        f'max="{len(values) - 1}" value="{list(values).index(control.start)}">'
        f'<span class="end" aria-hidden="true">{values[-1]:,}</span>'
        '<output for="slider"></output></form>'
    )


def footer(settings: Mapping[str, object]) -> str:
    """Return the settings, and the version that made the page."""
    pairs = "".join(
        f"<div><dt>{escape(str(name))}</dt><dd>{escape(_plain(value))}</dd></div>"
        for name, value in settings.items()
    )
    return (f"<dl>{pairs}</dl>\n" if pairs else "") + f"<p>sharpmax {sharpmax.__version__}</p>"


def _plain(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def paragraphs(text: str) -> str:
    """Return text whose paragraphs are parted by blank lines."""
    parts = (part.strip() for part in text.split("\n\n"))
    return "\n".join(f"<p>{escape(part)}</p>" for part in parts if part)


def script(code: str) -> str:
    """Return JavaScript that may stand in a page: no string in it ends the script element."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def script_data(json: str) -> str:
    """Return JSON that may stand in a page."""
    return json.replace("<", "\\u003c")
