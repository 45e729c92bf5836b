"""Lines over the size of the set, one for each policy: what most of the figures are made of."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from sharpmax.report import style
from sharpmax.report.chart import data
from sharpmax.report.rows import Row


def size_axis(sizes: Sequence[int]) -> alt.X:
    """Return the x axis of set sizes, on which every doubling is equally long."""
    least, most = min(sizes), max(sizes)
    domain = [least, most] if least < most else [least / 2, 2 * most]
    scale = alt.Scale(type="log", base=2, nice=False, domain=domain, padding=10)
    axis = alt.Axis(values=list(sizes), format=",d")
    return alt.X("size:Q", title="items in the set", scale=scale, axis=axis)


def policy_lines(
    rows: Sequence[Row],
    sizes: Sequence[int],
    lines: Mapping[str, style.Line],
    y: alt.Y,
    tooltip: Mapping[str, str],
    chosen: alt.Parameter | None,
) -> list[alt.Chart]:
    """Return a line and points for each policy.

    Args:
        rows: The points, each with a policy, a size and what `y` reads.
        sizes: All sizes of the run.
        lines: How each policy is drawn.
        y: What is drawn.
        tooltip: The fields that a point tells when it is pointed at, with their titles.
        chosen: The selection of policies that stand out, if any can be made.
    """
    base = alt.Chart(data(rows)).encode(x=size_axis(sizes), y=y, opacity=highlighted(chosen))
    told = [alt.Tooltip(f"{name}:N", title=title) for name, title in tooltip.items()]
    line = base.mark_line(strokeWidth=2).encode(**style.channels(lines))
    return [
        line if chosen is None else line.add_params(chosen),
        base.mark_point(filled=True, size=30, strokeWidth=0).encode(
            fill=style.companions(lines)["fill"],
            tooltip=[
                alt.Tooltip("policy:N", title="policy"),
                alt.Tooltip("size:Q", title="items", format=",d"),
                *told,
            ],
        ),
    ]


def legend_choice() -> alt.Parameter:
    """Return the selection that clicks on the legend make, and undo."""
    return alt.selection_point(name="chosen", fields=["policy"], bind="legend", toggle="true")


def highlighted(chosen: alt.Parameter | None, full: float = 1.0, faint: float = 0.1) -> Any:
    """Return the opacity that sets back what is not chosen; a file has nothing to choose."""
    if chosen is None:
        return alt.value(full)
    return alt.when(chosen).then(alt.value(full)).otherwise(alt.value(faint))


def size_parameter(start: int) -> alt.Parameter:
    """Return the parameter that the page's slider drives."""
    return alt.param(name="size", value=start)


def following(panel: alt.LayerChart, sizes: Sequence[int], start: int) -> alt.LayerChart:
    """Return a panel for the page: as wide as its box, with a line at the slider's size."""
    rule = (
        alt.Chart(data({"size": size} for size in sizes))
        .mark_rule(color=style.MUTED, strokeWidth=1, opacity=0.7)
        .encode(x=size_axis(sizes))
        .transform_filter("datum.size == size")
        .add_params(size_parameter(start))
    )
    ruled = alt.LayerChart(layer=[rule, *panel.layer], data=panel.data, params=panel.params)
    return ruled.properties(
        title=panel.title, description=panel.description, width="container", height=320
    )


def side_by_side(panels: Sequence[alt.LayerChart], height: int = 300) -> alt.HConcatChart:
    """Return panels in one row for a file, under one legend of policies."""
    sized = [panel.properties(width=430, height=height) for panel in panels]
    row = alt.HConcatChart(hconcat=sized, spacing=44)
    shared: alt.HConcatChart = row.resolve_scale(color="shared", strokeDash="shared")
    return shared
