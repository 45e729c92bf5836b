"""What a calibrated policy does to every head, as heat maps."""

from collections.abc import Sequence

import altair as alt

from sharpmax.report import style
from sharpmax.report.calibration.tables import Tables
from sharpmax.report.chart import data
from sharpmax.report.head_grid import grid_height, head_axis, layer_axis
from sharpmax.report.rows import Row

MEASURES = {
    "long": "ln β at the longest length, within the band",
    "sink_long": "γ at the longest length, within the band",
    "sink_log_power": "ln of the power that the odds of the sink are raised to",
    "above": "ln β for each nat of entropy above the band",
    "below": "ln β for each nat of entropy below the band",
    "sink_above": "γ for each nat of entropy above the band",
    "sink_below": "γ for each nat of entropy below the band",
}


def head_maps(tables: Tables) -> list[alt.Chart]:
    """Return a map for every measure that differs from 0 somewhere."""
    return [
        _map(tables.heads, field)
        for field in MEASURES
        if field == "long" or any(row[field] for row in tables.heads)
    ]


def _map(heads: Sequence[Row], field: str) -> alt.Chart:
    reach = max((abs(row[field]) for row in heads), default=0.0) or 1.0
    colour = alt.Color(
        f"{field}:Q",
        scale=alt.Scale(domain=[-reach, 0, reach], range=list(style.DIVERGING), interpolate="rgb"),
        legend=alt.Legend(title=None, orient="bottom", gradientLength=160, tickCount=3),
    )
    told = [
        alt.Tooltip("layer:O"),
        alt.Tooltip("head:O"),
        alt.Tooltip("short:Q", title="ln β up to the reference length", format="+.3f"),
        alt.Tooltip("long:Q", title="ln β at the longest", format="+.3f"),
        alt.Tooltip("sink_short:Q", title="γ up to the reference length", format="+.3f"),
        alt.Tooltip("sink_long:Q", title="γ at the longest", format="+.3f"),
        alt.Tooltip("sink_log_power:Q", title="ln of the sink's power", format="+.3f"),
        alt.Tooltip("below:Q", title="ln β a nat below the band", format="+.3f"),
        alt.Tooltip("above:Q", title="ln β a nat above the band", format="+.3f"),
        alt.Tooltip("sink_below:Q", title="γ a nat below the band", format="+.3f"),
        alt.Tooltip("sink_above:Q", title="γ a nat above the band", format="+.3f"),
    ]
    count = len({row["head"] for row in heads})
    drawn: alt.Chart = (
        alt.Chart(data(heads))
        .mark_rect(aria=False)
        .encode(x=layer_axis(), y=head_axis(), color=colour, tooltip=told)
        .properties(
            height=grid_height(count),
            title=alt.TitleParams(MEASURES[field], limit=alt.ExprRef("width")),
            description=f"{MEASURES[field]}, of every head by layer.",
        )
    )
    return drawn
