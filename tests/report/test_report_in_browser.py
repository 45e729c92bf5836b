"""The page as a reader meets it: it draws, moves, changes colour, and asks for nothing."""

import json
from typing import Any

import pytest

pytest.importorskip("selenium", reason="selenium drives the browser")

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from shown_page import cells, ground, idle, lines, set_theme, set_width, shown, until

HEAT_MAPS = (2, 3)


@pytest.fixture
def opened(browser, report):
    """The report, drawn, on a wide and light screen; what it remembers is forgotten after."""
    yield from shown(browser, report)


def test_every_chart_is_drawn(opened):
    boxes = opened.find_elements(By.CSS_SELECTOR, "[data-chart]")
    drawn = opened.find_elements(By.CSS_SELECTOR, "[data-chart] svg.marks")
    assert len(boxes) == len(drawn) == 9
    assert all(chart.size["height"] > 150 for chart in drawn)
    assert all(len(cells(opened, chart)) == 8 * 16 for chart in HEAT_MAPS)


def test_no_request_leaves_the_machine(opened):
    events = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    sent = [event for event in events if event["method"] == "Network.requestWillBeSent"]
    addresses = [event["params"]["request"]["url"] for event in sent]
    assert addresses
    assert [url for url in addresses if not url.startswith(("file:", "data:"))] == []


def test_the_slider_moves_both_heat_maps_and_says_where_it_stands(opened):
    slider = opened.find_element(By.ID, "slider")
    output = opened.find_element(By.CSS_SELECTOR, ".slider output")
    before = {chart: cells(opened, chart) for chart in HEAT_MAPS}
    assert output.text == "32 items"
    slider.send_keys(Keys.END)
    assert output.text == slider.get_attribute("aria-valuetext") == "1,024 items"
    for chart in HEAT_MAPS:
        until(opened, lambda chart=chart: cells(opened, chart) != before[chart])
    slider.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert output.text == "32 items"
    for chart in HEAT_MAPS:
        until(opened, lambda chart=chart: cells(opened, chart) == before[chart])


def test_the_button_turns_page_and_charts_dark_and_keeps_the_slider(opened):
    opened.find_element(By.ID, "slider").send_keys(Keys.END)
    light_page = ground(opened)
    light = until(opened, lambda: cells(opened, 2)), lines(opened, 0)
    opened.find_element(By.ID, "theme").click()
    until(opened, lambda: idle(opened) and lines(opened, 0) not in ([], light[1]))
    assert ground(opened) != light_page
    assert set(cells(opened, 2)).isdisjoint(light[0])
    assert opened.find_element(By.CSS_SELECTOR, ".slider output").text == "1,024 items"
    opened.find_element(By.ID, "theme").click()
    until(opened, lambda: idle(opened) and lines(opened, 0) == light[1])
    assert ground(opened) == light_page


def test_a_dark_system_gets_a_dark_page(opened):
    light_page, light = ground(opened), lines(opened, 0)
    set_theme(opened, "dark")
    until(opened, lambda: idle(opened) and lines(opened, 0) not in ([], light))
    assert ground(opened) != light_page


def test_a_click_in_a_legend_singles_a_policy_out_in_all_charts(opened):
    def label(chart: int) -> Any:
        box = f'[data-chart="{chart}"] .role-legend-label text'
        labels = opened.find_elements(By.CSS_SELECTOR, box)
        found = next(text for text in labels if text.text == "paper")
        opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
        return found

    label(0).click()
    for chart in (0, 1, 4, 5):
        until(opened, lambda chart=chart: "0.1" in {opacity for _, opacity in lines(opened, chart)})
        assert ["#0072b2", "1"] in lines(opened, chart)
    label(5).click()
    for chart in (0, 1, 4, 5):
        until(opened, lambda chart=chart: {"1"} >= {o for _, o in lines(opened, chart) if o})


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_never_scrolls_sideways(opened, width):
    set_width(opened, width)
    opened.refresh()
    until(opened, lambda: idle(opened))
    assert opened.execute_script("return document.documentElement.scrollWidth") <= width
