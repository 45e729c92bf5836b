"""A chart's data, the chart as Vega-Lite for a page, and as files: PNG and SVG."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import altair as alt
import vl_convert

from sharpmax.report import style

Chart: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart | alt.HConcatChart | alt.VConcatChart

VEGA_LITE = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])


def save(chart: Chart, folder: Path, name: str) -> tuple[Path, Path]:
    """Write NAME.png, at twice the size, and NAME.svg, on white; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**style.CONFIG, "background": "white", "padding": 16}
    svg = vl_convert.vegalite_to_svg(
        specification(chart), vl_version=VEGA_LITE, config=config, show_warnings=False
    )
    png, vector = folder / f"{name}.png", folder / f"{name}.svg"
    png.write_bytes(vl_convert.svg_to_png(svg, scale=2))
    vector.write_text(svg, encoding="utf-8")
    return png, vector


def data(rows: Iterable[Mapping[str, Any]]) -> alt.InlineData:
    """Return records as a chart's data.

    They are kept as text until the chart is done: Altair copies and checks data at every step,
    record by record, which takes ten times as long as all the rest.
    """
    text = json.dumps([dict(row) for row in rows], allow_nan=False)
    return alt.InlineData(values=text, format=alt.JsonDataFormat(type="json"))


def specification(chart: Chart) -> dict[str, Any]:
    """Return a chart in Vega-Lite with no look of its own: that is the page's or the file's."""
    with alt.theme.enable("none"):
        spec: dict[str, Any] = _with_records(chart.to_dict())
    return spec


def _with_records(node: Any) -> Any:
    """Return a specification whose data are records again, not text."""
    if isinstance(node, list):
        return [_with_records(item) for item in node]
    if not isinstance(node, dict):
        return node
    if isinstance(node.get("values"), str):
        return {"values": json.loads(node["values"])}
    return {key: _with_records(value) for key, value in node.items()}
