"""The report of a diagnosis: its figures as files, and the page that shows them all."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sharpmax.report.chart import Chart, save
from sharpmax.report.diagnosis.bound import bound, bound_panel, half_length_panel
from sharpmax.report.diagnosis.by_length import head_choice
from sharpmax.report.diagnosis.entropy import entropy, entropy_panel
from sharpmax.report.diagnosis.finding import finding, growth_table
from sharpmax.report.diagnosis.heads import Heads
from sharpmax.report.diagnosis.heat_map import heat_map, map_at_slider
from sharpmax.report.diagnosis.kinds import kinds, kinds_panel, kinds_table
from sharpmax.report.diagnosis.one_head import one_head_panels
from sharpmax.report.page import Page, Section, Slider
from sharpmax.report.rows import Row


def write_report(
    folder: Path, rows: Sequence[Row], settings: Mapping[str, object], *, title: str
) -> Path:
    """Write folder/figures/*.png and *.svg and folder/report.html; return the page's path.

    Args:
        folder: Where to write; it is made if it is not there.
        rows: The heads: case, length, layer, head, kind, entropy, share, largest, first, near,
            beta, spread, bound and half_length of each.
        settings: What the diagnosis was made with, for the foot of the page.
        title: The page's title.

    Raises:
        ValueError: If there are no rows.
    """
    heads = Heads.of(rows)
    for name, chart in figures(heads).items():
        save(chart, folder / "figures", name)
    return page(heads, settings, title=title).write(folder / "report.html")


def figures(heads: Heads) -> dict[str, Chart]:
    """Return the figures by name."""
    return {
        "heatmap": heat_map(heads),
        "kinds": kinds(heads),
        "entropy": entropy(heads),
        "bound": bound(heads),
    }


def page(heads: Heads, settings: Mapping[str, object], *, title: str) -> Page:
    """Return the page: the answer first, then every head, then one."""
    start = heads.lengths[-1]
    slider = Slider("Tokens read", heads.lengths, start, "length", unit="tokens")
    sections = [
        _spread_out(heads, start),
        _where(heads, start),
        _kinds(heads),
        _growth(heads, start),
        _bound(heads, start),
        _half_length(heads, start),
        _one_head(heads, start),
        *_tables(heads),
    ]
    return Page(title, finding(heads), sections, slider, settings)


def _spread_out(heads: Heads, start: int) -> Section:
    return Section(
        "How evenly each head spreads its weight",
        "A cell is a head, and its colour the entropy of its weights over ln n: 0 where one token "
        "has all the weight, 1 where every token has the same. Move the slider to read more or "
        "fewer tokens. Click a cell to choose a head in all charts, and double-click to let it go.",
        [map_at_slider(heads, case, "share", start, head_choice()) for case in heads.cases],
    )


def _where(heads: Heads, start: int) -> Section:
    return Section(
        "Where the weight goes",
        "The weight of the token that has most of it, and the weight on the first token (or on a "
        "learned sink), where many heads leave what they do not need.",
        [
            map_at_slider(heads, case, field, start, head_choice())
            for case in heads.cases
            for field in ("largest", "first")
        ],
    )


def _kinds(heads: Heads) -> Section:
    return Section(
        "What kind of head each is",
        "A sink has half of its weight or more on the first token, a local head on the last 32, "
        "and a sharp one on a single token. Of the rest, a head disperses if its entropy follows "
        "the length, at half of ln n or faster, and is steady otherwise.",
        [kinds_panel(heads, case, head_choice()) for case in heads.cases],
        kinds_table(heads),
    )


def _growth(heads: Heads, start: int) -> Section:
    return Section(
        "Entropy as the context grows",
        "A line is a head. One that runs along ln n gives every token the same weight; one that "
        "stays level keeps looking at as many tokens as before. Click kinds in the legend to "
        "single them out, and again to let them go.",
        [entropy_panel(heads, case, start, head_choice()) for case in heads.cases],
    )


def _bound(heads: Heads, start: int) -> Section:
    return Section(
        "What the logits allow",
        "With logits spread by δ, no weight among n tokens can exceed exp(βδ)/n (Lemma 2.1): the "
        "bound falls with n unless the spread grows or a policy raises β.",
        [bound_panel(heads, start, head_choice())],
    )


def _half_length(heads: Heads, start: int) -> Section:
    return Section(
        "How far half of the weight can reach",
        "Beyond 2·exp(βδ) tokens, a head's half-length, none can have half of its weight. The dots "
        "are heads in the order of theirs, cut off at 10⁹ (1G). Those left of the line, which "
        "stands at the slider's length, can no longer give half to any token.",
        [half_length_panel(heads, case, start, head_choice()) for case in heads.cases],
    )


def _one_head(heads: Heads, start: int) -> Section:
    return Section(
        "One head",
        "All that was measured of the head that you chose in a map above; until you choose one, "
        "the mean over all heads.",
        one_head_panels(heads, start, head_choice()),
    )


def _tables(heads: Heads) -> Iterable[Section]:
    for case in heads.cases:
        of_case = f": {case}" if len(heads.cases) > 1 else ""
        title = "The heads that change most" if len(heads.lengths) > 1 else "The widest heads"
        yield Section(title + of_case, table=growth_table(heads, case))
