"""How the heads disperse as problems grow."""

import altair as alt

from sharpmax.report import style
from sharpmax.report.chart import data
from sharpmax.report.clrs.tables import Tables


def entropy(tables: Tables) -> alt.Chart | None:
    """Return the mean entropy of all heads by size, a line a case; None if it is not known."""
    rows = tables.entropy_by_size()
    if not rows:
        return None
    told = [
        alt.Tooltip("case:N"),
        alt.Tooltip("size:Q"),
        alt.Tooltip("entropy:Q", title="entropy, nats", format=".3f"),
        alt.Tooltip("share:Q", title="of the most there could be", format=".1%"),
    ]
    drawn: alt.Chart = (
        alt.Chart(data(rows))
        .mark_line(strokeWidth=2, point={"size": 36, "filled": True})
        .encode(
            x=alt.X("size:Q", title="size", axis=alt.Axis(format="d"), scale=alt.Scale(nice=False)),
            y=alt.Y("entropy:Q", title="entropy, nats"),
            tooltip=told,
            **style.channels(style.lines(tables.cases), "case"),
        )
        .properties(
            title=alt.TitleParams(
                "Entropy of attention while answers are written",
                subtitle="mean over heads, layers and algorithms",
            ),
            description="The mean entropy of the heads over the size of the problem, by case.",
        )
    )
    return drawn
