"""Everything that was measured of one head against the length; of the mean while none is chosen."""

import altair as alt

from sharpmax.report.diagnosis.by_length import head_or_mean, rule, whose
from sharpmax.report.diagnosis.heads import Heads

WEIGHTS = {
    "largest": "Largest weight",
    "first": "On the first token",
    "near": "On the last 32 tokens",
    "bound": "Bound exp(βδ)/n",
}
DRAWN = {"entropy": "Entropy, nats", **WEIGHTS, "spread": "Spread δ"}


def one_head_panels(heads: Heads, start: int, chosen: alt.Parameter) -> list[alt.LayerChart]:
    """Return a small panel for each measure."""
    return [_panel(heads, field, start, chosen) for field in DRAWN]


def _panel(heads: Heads, field: str, start: int, chosen: alt.Parameter) -> alt.LayerChart:
    top = max((row[field] for row in heads.rows if row[field]), default=1.0)
    # The same for every head, so that heads may be compared.
    scale = alt.Scale(domain=[0, 1 if field in WEIGHTS else top], nice=3)
    y = alt.Y(f"{field}:Q", title=None, scale=scale, axis=alt.Axis(tickCount=3))
    first, *others = head_or_mean(heads, y, chosen)
    layers = [rule(heads.lengths, start), first.add_params(chosen), *others]
    return alt.LayerChart(layer=layers).properties(
        width="container",
        height=150,
        title=whose(DRAWN[field], chosen),
        description=f"{DRAWN[field]} against the length.",
    )
