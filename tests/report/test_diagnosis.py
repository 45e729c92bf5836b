"""The report of a diagnosis: its figures, its sentences, and its page as a reader meets it."""

import json
import math
import re

import pytest
from tables_of_a_diagnosis import rows_of_a_diagnosis

from sharpmax.report.chart import specification
from sharpmax.report.diagnosis import Heads, figures, page, write_report
from sharpmax.report.diagnosis.finding import finding, growth_table
from sharpmax.report.diagnosis.heads import KINDS, LONGEST_HALF_LENGTH
from sharpmax.report.diagnosis.heat_map import map_height
from sharpmax.report.diagnosis.kinds import kinds_table

pytest.importorskip("selenium", reason="selenium drives the browser")

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from shown_page import cells, ground, idle, set_theme, set_width, shown, until

CASES = ("plain", "my 'own' </script>")
LENGTHS, LAYERS, HEADS = (64, 512, 8192), 5, 3
SHARE, FIRST, KINDS_MAP, ONE_HEAD = 0, 3, 6, 13  # the first chart of its kind on the page
CHARTS = 19


def rows(**changed):
    return rows_of_a_diagnosis(
        **{"cases": CASES, "lengths": LENGTHS, "layers": LAYERS, "heads": HEADS, **changed}
    )


def content(html):
    return json.loads(re.search(r'id="content">(.*?)</script>', html, re.DOTALL).group(1))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The page of a diagnosis of two cases; its figures lie beside it."""
    settings = {"model": "a model", "samples": 1}
    return write_report(tmp_path_factory.mktemp("diagnosis"), rows(), settings, title="Heads & all")


@pytest.fixture
def opened(browser, written):
    """The page, drawn, on a wide and light screen."""
    yield from shown(browser, written)


@pytest.mark.parametrize("name", ["heatmap", "kinds", "entropy", "bound"])
def test_every_figure_is_a_png_and_an_svg(written, name):
    png = (written.parent / "figures" / f"{name}.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20]) > 600
    assert (written.parent / "figures" / f"{name}.svg").read_text("utf-8").startswith("<svg")


@pytest.mark.parametrize("changed", [{"lengths": (64,)}, {"cases": ("a",), "layers": 1}], ids=str)
def test_one_of_anything_is_enough(changed):
    heads = Heads.of(rows(**changed))
    for chart in figures(heads).values():
        specification(chart)
    assert content(page(heads, {}, title="One").html())["charts"]


def test_no_rows_are_refused():
    with pytest.raises(ValueError, match="rows must hold at least one head, got none"):
        Heads.of([])


def test_infinite_and_missing_numbers_do_not_reach_the_page():
    broken = [
        {**row, "half_length": math.inf, "entropy": math.nan, "share": math.nan} for row in rows()
    ]
    heads = Heads.of(broken)
    page(heads, {}, title="Broken").html()
    assert {row["half_length"] for row in heads.rows} == {LONGEST_HALF_LENGTH}
    assert {row["entropy"] for row in heads.rows} == {None}
    assert "over 10⁹" in growth_table(heads, "plain").rows[0]


def test_the_page_holds_every_head_once(written):
    datasets = content(written.read_text("utf-8"))["datasets"].values()
    count = len(LENGTHS) * LAYERS * HEADS  # of each case
    assert [len(held) for held in datasets if len(held) >= count] == [count] * len(CASES)


def test_the_lead_tells_of_every_case():
    made = [
        {**row, "kind": kind, "entropy": 1.0 if row["length"] == 64 else entropy}
        for case, entropy in (("a", 3.0), ("b", 0.5))
        for row in rows(cases=(case,), layers=1, heads=3, lengths=(64, 128))
        for kind in [("disperses", "sink", "local")[row["head"]]]
    ]
    assert finding(Heads.of(made)) == (
        "a: at 128 tokens 1 of 3 heads disperses, beside 1 sink and 1 local head; "
        "their mean entropy rises from 1.00 nats at 64 to 3.00.\n\n"
        "b: at 128 tokens 1 of 3 heads disperses, beside 1 sink and 1 local head; "
        "their mean entropy falls from 1.00 nats at 64 to 0.50."
    )


def test_models_of_different_sizes_stand_side_by_side():
    heads = Heads.of([*rows(cases=("small",)), *rows(cases=("large",), layers=7, heads=4)])
    assert [heads.counts(case).total() for case in heads.cases] == [15, 28]
    assert map_height(heads, "large") > map_height(heads, "small")
    for chart in figures(heads).values():
        specification(chart)


def test_a_head_s_kind_is_that_at_the_longest_length():
    made = [{**row, "kind": "steady" if row["length"] < 8192 else "disperses"} for row in rows()]
    heads = Heads.of(made)
    assert {row["kind"] for row in heads.rows} == {"disperses"}
    assert heads.counts("plain") == {"disperses": LAYERS * HEADS}


def test_kinds_are_counted_and_keep_their_colours():
    heads = Heads.of([*rows(), {**rows()[0], "layer": 9, "kind": "of its own"}])
    table = kinds_table(heads)
    assert table.header[:2] == ["case", "heads"]
    for row in table.rows:
        assert sum(map(int, row[2:])) == int(row[1])
    assert all(heads.kinds[kind] == KINDS[kind] for kind in heads.kinds if kind in KINDS)
    assert len({line.light for line in heads.kinds.values()}) == len(heads.kinds)


def test_the_table_ranks_heads_by_the_growth_of_their_entropy():
    table = growth_table(Heads.of(rows()), "plain")
    assert table.header == [
        "head",
        "kind",
        "nats at 64",
        "nats at 8,192",
        "spread δ",
        "half-length",
    ]
    growth = [float(row[3]) - float(row[2]) for row in table.rows]
    assert len(growth) == 10
    assert growth == pytest.approx(sorted(growth, reverse=True), abs=0.011)


def test_every_chart_is_drawn_and_no_request_leaves_the_machine(opened):
    drawn = opened.find_elements(By.CSS_SELECTOR, "[data-chart] svg.marks")
    assert len(drawn) == CHARTS
    assert all(chart.size["height"] > 100 for chart in drawn)
    events = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    sent = [event for event in events if event["method"] == "Network.requestWillBeSent"]
    addresses = [event["params"]["request"]["url"] for event in sent]
    assert addresses
    assert [url for url in addresses if not url.startswith(("file:", "data:"))] == []


def test_the_slider_moves_the_heat_maps_but_not_the_kinds(opened):
    slider = opened.find_element(By.ID, "slider")
    before, kinds = cells(opened, SHARE), cells(opened, KINDS_MAP)
    assert len(before) == len(kinds) == LAYERS * HEADS
    slider.send_keys(Keys.HOME)
    assert opened.find_element(By.CSS_SELECTOR, ".slider output").text == "64 tokens"
    until(opened, lambda: cells(opened, SHARE) != before)
    assert cells(opened, KINDS_MAP) == kinds
    slider.send_keys(Keys.END)
    until(opened, lambda: cells(opened, SHARE) == before)


def test_a_click_on_a_cell_chooses_its_head_in_all_charts(opened):
    def title():
        box = f'[data-chart="{ONE_HEAD}"] .role-title-text text'
        return opened.find_element(By.CSS_SELECTOR, box).text

    assert title() == "Entropy, nats: mean over heads"
    marks = f'[data-chart="{FIRST}"] .role-mark.mark-rect path'
    cell = opened.find_elements(By.CSS_SELECTOR, marks)[4]
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", cell)
    cell.click()
    until(opened, lambda: title() == "Entropy, nats: layer 1, head 1")
    for chart in (SHARE, FIRST, KINDS_MAP):  # a frame besides the cells
        until(opened, lambda chart=chart: len(cells(opened, chart)) == LAYERS * HEADS + 1)
    opened.find_element(By.ID, "theme").click()
    until(opened, lambda: idle(opened) and title() == "Entropy, nats: layer 1, head 1")
    cell = opened.find_elements(By.CSS_SELECTOR, marks)[4]
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", cell)
    ActionChains(opened).double_click(cell).perform()
    until(opened, lambda: title() == "Entropy, nats: mean over heads")


def test_a_dark_system_gets_a_dark_page(opened):
    light_page, light, kinds = ground(opened), cells(opened, SHARE), cells(opened, KINDS_MAP)
    set_theme(opened, "dark")
    until(opened, lambda: idle(opened) and cells(opened, SHARE) not in ([], light))
    assert ground(opened) != light_page
    assert set(cells(opened, KINDS_MAP)).isdisjoint(kinds)


def test_the_page_never_scrolls_sideways(opened):
    set_width(opened, 390)
    opened.refresh()
    until(opened, lambda: idle(opened))
    assert opened.execute_script("return document.documentElement.scrollWidth") <= 390
