"""The report of a calibration: its figures, its sentences, and its page as a reader meets it."""

import json
from dataclasses import replace

import pytest

from sharpmax.report.calibration import Tables, figures, page, write_report
from sharpmax.report.calibration.comparison import comparison_table
from sharpmax.report.calibration.frontier import LOOKED_AT, by_heads, frontier
from sharpmax.report.calibration.report import finding
from sharpmax.report.chart import specification

pytest.importorskip("selenium", reason="selenium drives the browser")

from selenium.webdriver.common.by import By
from shown_page import ground, set_theme, set_width, shown

CASES = ("plain", "cost 0.9%", "cost 2%", "8 heads", "2 heads", "paper", "entropy caps")


def point(name: str, heads: int, retrieval: float, text_cost: float) -> dict:
    return {
        "name": name,
        "allowed": 0.02,
        "heads": heads,
        "steps": 100,
        "retrieval": retrieval,
        "answer_loss": 1.0,
        "text_loss": 2.0,
        "divergence": 0.01,
        "text_cost": text_cost,
    }


def tables(kept: str | None = "cost 0.9%", compared: bool = True) -> Tables:
    heads = [
        {
            "layer": layer,
            "head": head,
            "short": 0.1 * head,
            "long": 0.3 * (layer - 2),
            "below": 0.0,
            "above": 0.2 * (head - 1),
            "sink_short": 0.0,
            "sink_long": 0.5 * (head - 1),
            "sink_below": 0.0,
            "sink_above": 0.3 * (layer - 1),
            "sink_log_power": 0.0,
        }
        for layer in range(6)
        for head in range(3)
    ]
    scores = [
        {
            "case": case,
            "task": task,
            "length": length,
            "depth": 0.5,
            "value": 0.1 * (8 - place) if task.startswith("retrieval") else 3.5 + 0.07 * place,
            "low": 0.0,
            "high": 1.0,
            "samples": 50,
        }
        for place, case in enumerate(CASES)
        for task in ("retrieval: room", "retrieval: train", "text, nats a token")
        for length in (1024, 2048)
    ]
    points = [
        point("cost 2%", 18, 0.8, 0.04),
        point("cost 0.9%", 17, 0.6, 0.008),
        point("8 heads", 8, 0.5, 0.005),
        point("2 heads", 2, 0.2, 0.001),
    ]
    plain = {"retrieval": 0.1, "answer_loss": 3.0, "text_loss": 2.0, "divergence": 0.0}
    return Tables(plain, points, kept, kept or "cost 2%", heads, scores if compared else [])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibration")
    return write_report(folder, tables(), {"model": "a <model>"}, "β & heads")


@pytest.fixture
def opened(browser, written):
    yield from shown(browser, written)


@pytest.mark.parametrize("name", ["frontier", "fewer_heads", "comparison", "heads"])
def test_every_figure_is_a_png_and_an_svg(written, name):
    png = (written.parent / "figures" / f"{name}.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert (written.parent / "figures" / f"{name}.svg").read_text("utf-8").startswith("<svg")


def test_the_finding_tells_of_prompts_that_nothing_was_chosen_by():
    assert finding(tables()) == (
        "17 heads are changed by the policy that is kept. Of 100 answers a length, with templates, "
        "keys and values that nothing was fitted to or chosen by, it finds 70% (60% to 78%) in "
        "place of 80% at 1,024 tokens, where the loss on text changes by +2.0%; 70% (60% to 78%) "
        "in place of 80% at 2,048 tokens, where the loss on text changes by +2.0%."
    )
    assert finding(tables(kept=None)).startswith("No policy was kept: none finds more")
    assert "The one that finds most is cost 2%. Of 100 answers" in finding(tables(kept=None))


def test_without_a_comparison_the_finding_says_what_it_was_chosen_by():
    assert finding(tables(compared=False)).endswith(
        "It finds 60% of the answers in place of 10%, of the prompts that it was chosen by, and "
        "the loss on text changes by +0.80%."
    )


def test_policies_are_pooled_over_templates_and_the_best_is_bold():
    table = comparison_table(tables())
    assert table is not None
    assert table.header == [
        "policy",
        "found at 1,024",
        "found at 2,048",
        "text at 1,024",
        "text at 2,048",
    ]
    assert [row[0] for row in table.rows] == ["plain", "cost 0.9% (kept)", *CASES[2:]]
    assert table.rows[1][1] == "70% (60–78)"
    assert [row[3] for row in table.rows[:3]] == ["3.500 nats", "+2.0%", "+4.0%"]
    assert table.strong == {(0, 1), (0, 2)}


@pytest.mark.parametrize(("kept", "chosen"), [("cost 0.9%", 70), ("cost 2%", 60), (None, 60)])
def test_beside_the_rivals_one_policy_stands_for_all(kept, chosen):
    shares = {row["case"]: row["value"] for row in tables(kept).beside() if row["length"] == 1024}
    assert set(shares) == {"plain", "calibrated", "paper", "entropy caps"}
    assert shares["calibrated"] == pytest.approx(chosen / 100)


def drawn_rows(chart, layer: int) -> list[dict]:
    return json.loads(chart.layer[layer].data.values)


def test_the_frontier_has_a_line_a_length_where_policies_were_compared():
    dots = drawn_rows(frontier(tables()), 2)
    assert {(row["name"], row["series"]) for row in dots} == {
        (name, f"{length} tokens") for name in CASES[:5] for length in ("1,024", "2,048")
    }
    kept = next(row for row in dots if row["kind"] == "kept")
    assert kept["name"] == "cost 0.9%"
    assert (kept["retrieval"], kept["text_cost"]) == pytest.approx((0.7, 0.02))
    alone = drawn_rows(frontier(tables(compared=False)), 2)
    assert [(row["name"], row["retrieval"], row["text_cost"]) for row in alone][:2] == [
        ("plain", 0.1, 0.0),
        ("cost 2%", 0.8, 0.04),
    ]


def test_names_of_the_frontier_do_not_stand_on_each_other():
    points = [point(f"cost {cost}%", 9, 0.5 + cost / 1000, 0.01 * cost) for cost in (1, 2, 3, 40)]
    chart = frontier(Tables(tables().plain, points, "cost 2%", "cost 2%", []))
    assert [row["name"] for row in drawn_rows(chart, 3)] == ["cost 2%", "cost 40%"]


def test_equals_are_all_bold():
    every = [{**score, "value": 0.5, "samples": 10} for score in tables().scores]
    table = comparison_table(Tables(tables().plain, tables().points, None, "cost 2%", [], every))
    assert table is not None
    assert table.strong == {(row, column) for row in range(len(CASES)) for column in (1, 2)}


def test_the_users_own_questions_have_a_column_where_there_are_any():
    shown = tables()
    own = [{**point, "own": 0.25} for point in shown.points]
    with_own = replace(shown, points=own, plain={**shown.plain, "own": 0.125})
    html = [page(some, {}, "Own").html() for some in (shown, with_own)]
    assert ["of your own" in some for some in html] == [False, True]
    assert "12.5%" in html[1]


@pytest.mark.parametrize("left", ["plain", "2 heads", "text, nats a token"])
def test_while_something_is_not_compared_the_charts_show_what_was_looked_at(left):
    scores = [row for row in tables().scores if left not in (row["case"], row["task"])]
    partial = replace(tables(), scores=scores)
    assert {row["series"] for row in drawn_rows(frontier(partial), 2)} == {LOOKED_AT}
    assert finding(partial).endswith("changes by +0.80%.")
    for chart in figures(partial).values():
        specification(chart)
    page(partial, {}, "Some").html()


def test_the_line_through_all_heads_leaves_fewer_out_even_if_they_are_kept():
    fewer = frontier(tables(kept="8 heads"))
    assert not {row["name"] for row in drawn_rows(fewer, 0)} & {"8 heads", "2 heads"}


@pytest.mark.parametrize("kept", [None, "cost 2%", "1 heads"])
def test_fewer_heads_are_shown_beside_all_of_them(kept):
    names = ("cost 2%", 7), ("cost 0.8%", 8), ("2 heads", 2), ("1 heads", 1)
    points = [point(name, heads, 0.5, 0.01) for name, heads in names]
    chart = by_heads(Tables(tables().plain, points, kept, kept or "cost 2%", []))
    assert chart is not None
    shown = sorted(row["heads"] for row in drawn_rows(chart, 1))
    assert shown == [1, 2, 7 if kept == "cost 2%" else 8]


def test_without_a_comparison_and_without_fewer_heads():
    bare = Tables(tables().plain, tables().points[:1], None, "cost 2%", tables().heads)
    assert set(figures(bare)) == {"frontier", "heads"}
    for chart in figures(bare).values():
        specification(chart)
    assert "Beside other policies" not in page(bare, {}, "One").html()


def test_no_points_are_refused():
    with pytest.raises(ValueError, match="points must hold at least one policy"):
        Tables({}, [], None, "", [])


def test_the_page_opens_in_light_and_dark_and_on_a_narrow_screen(opened):
    assert len(opened.find_elements(By.CSS_SELECTOR, "svg.marks, canvas.marks")) >= 5
    light = ground(opened)
    set_theme(opened, "dark")
    assert ground(opened) != light
    set_width(opened, 420)
    assert opened.execute_script("return document.documentElement.scrollWidth") <= 440
