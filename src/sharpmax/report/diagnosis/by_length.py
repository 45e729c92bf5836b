"""Charts over the length of the context: their axis, and one head in the place of the mean."""

from collections.abc import Sequence

import altair as alt

from sharpmax.report import style
from sharpmax.report.chart import data
from sharpmax.report.diagnosis.heads import Heads, told, tooltip


def length_axis(lengths: Sequence[int]) -> alt.X:
    """Return the x axis of lengths, on which every doubling is equally long."""
    least, most = min(lengths), max(lengths)
    domain = [least, most] if least < most else [least / 2, 2 * most]
    scale = alt.Scale(type="log", base=2, nice=False, domain=domain, padding=10)
    return alt.X(
        "length:Q", title="tokens", scale=scale, axis=alt.Axis(values=list(lengths), format=",d")
    )


def length_parameter(start: int) -> alt.Parameter:
    """Return the parameter that the page's slider drives."""
    return alt.param(name="length", value=start)


def head_choice() -> alt.Parameter:
    """Return the selection that a click on a head makes, and a double click undoes.

    It heeds no click on what is not a head, such as a mean.
    """
    return alt.selection_point(
        name="one_head",
        fields=["layer", "head"],
        on="click[event.item && event.item.datum && event.item.datum.layer >= 0]",
        toggle=False,
    )


def is_chosen(chosen: alt.Parameter) -> alt.ParameterPredicate:
    """Return the filter that keeps the chosen head, and nothing while none is chosen."""
    return alt.ParameterPredicate(param=chosen.name, empty=False)


def none_is_chosen(chosen: alt.Parameter) -> alt.ParameterPredicate:
    """Return the filter that keeps what is not a head, but only while none is chosen."""
    return alt.ParameterPredicate(param=chosen.name, empty=True)


def whose(measure: str, chosen: alt.Parameter, note: str = "") -> alt.TitleParams:
    """Return a title that follows the choice: a measure, and whose it is."""
    place = f"'layer ' + {chosen.name}.layer[0] + ', head ' + {chosen.name}.head[0]"
    who = f"({chosen.name}.layer ? {place} : 'mean over heads')"
    text = alt.ExprRef(f"'{measure}: ' + {who}")
    return alt.TitleParams(text, subtitle=note, limit=alt.ExprRef("width"))


def rule(lengths: Sequence[int], start: int) -> alt.Chart:
    """Return the line at the slider's length."""
    line: alt.Chart = (
        alt.Chart(data({"length": length} for length in lengths))
        .mark_rule(color=style.MUTED, strokeWidth=1, opacity=0.7)
        .encode(x=length_axis(lengths))
        .transform_filter("datum.length == length")
        .add_params(length_parameter(start))
    )
    return line


def case_colours(cases: Sequence[str]) -> alt.Color:
    """Return the encoding that gives every case its colour, with a legend if there are several."""
    drawn = style.lines(cases)
    scale = alt.Scale(domain=cases, range=[drawn[case].light for case in cases])
    legend = alt.Legend(title=None, symbolType="stroke", columns=1) if len(cases) > 1 else None
    return alt.Color("case:N", scale=scale, legend=legend)


def head_or_mean(
    heads: Heads, y: alt.Y, chosen: alt.Parameter | None, dash: Sequence[int] = (1, 0)
) -> list[alt.Chart]:
    """Return a line a case: of the chosen head, or of the mean over all while none is."""

    def line(chart: alt.Chart) -> alt.Chart:
        marked: alt.Chart = chart.mark_line(
            strokeWidth=2, strokeDash=list(dash), point={"size": 26, "filled": True}
        ).encode(x=length_axis(heads.lengths), y=y, color=case_colours(heads.cases))
        return marked

    of_all = [
        alt.Tooltip("case:N"),
        alt.Tooltip("length:Q", title="tokens", format=",d"),
        *told(),
    ]
    mean = line(alt.Chart(data(heads.means))).encode(tooltip=of_all)
    if chosen is None:
        return [mean]
    of_one = [alt.Tooltip("case:N"), *tooltip()]
    return [
        mean.transform_filter(none_is_chosen(chosen)),
        *(
            line(alt.Chart(held)).encode(tooltip=of_one).transform_filter(is_chosen(chosen))
            for held in heads.data.values()
        ),
    ]
