"""What the report writes: figures as real files, and one page that needs nothing else."""

import json
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from tables_of_a_run import POLICIES, tables_of_a_run

from sharpmax.report import Page, Section, Slider, Table, style
from sharpmax.report.chart import specification
from sharpmax.report.max_retrieval import Tables, figures, page, write_report
from sharpmax.report.max_retrieval.finding import accuracy_table, finding
from sharpmax.report.rows import thinned

FIGURES = ["accuracy", "attention", "attention_sharpened", "entropy", "fit", "training"]


def content(html: str) -> dict:
    """Return what the page's script draws from."""
    return json.loads(re.search(r'id="content">(.*?)</script>', html, re.DOTALL).group(1))


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_a_png_and_an_svg(report, name):
    folder = report.parent / "figures"
    png = (folder / f"{name}.png").read_bytes()
    width, height = int.from_bytes(png[16:20]), int.from_bytes(png[20:24])
    assert png.startswith(b"\x89PNG")
    assert width > 600
    assert height > 200
    svg = (folder / f"{name}.svg").read_text(encoding="utf-8")
    assert svg.startswith("<svg")
    assert 'fill="white"' in svg


def test_the_page_is_one_file_of_moderate_size(report):
    assert {path.name for path in report.parent.iterdir()} == {"figures", "report.html"}
    assert report.stat().st_size < 5_000_000


def test_the_page_loads_nothing_and_may_not(report):
    html = report.read_text(encoding="utf-8")
    markup = re.sub(r"(<script[^>]*>).*?</script>", r"\1", html, flags=re.DOTALL)
    assert not re.search(r"<(script|img|iframe|link)[^>]+(src|href)=(?![\"']?data:)", markup)
    assert not re.search(r"@import|url\(\s*[\"']?http", markup)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html).group(1)
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy


def test_text_and_data_cannot_break_out_of_the_page(report):
    html = report.read_text(encoding="utf-8")
    assert html.count("</script") == html.count("<script") == 3
    assert "alert(1)</script>" not in html
    assert "my &#x27;own&#x27; &lt;/script&gt;" in html


def test_the_page_leads_with_the_answer(report, tables):
    html = report.read_text(encoding="utf-8")
    assert html.index("At 1,024 items plain softmax finds the maximum 56 %") < html.index("<main")
    assert "sharpening without end" in finding(tables)


def test_the_paper_s_row_is_told_beside_softmax_where_it_is_best(tables):
    two = [row for row in tables.comparison if row["policy"] in ("softmax", "paper")]
    assert re.search(
        r"softmax .* 56 % .*, the paper's policy 65 %\.", finding(Tables(comparison=two))
    )


def test_the_table_has_a_row_a_policy_and_a_column_a_size(tables):
    table = accuracy_table(tables)
    assert table.header == ["policy", "16", "32", "64", "1,024"]
    assert [row[0] for row in table.rows] == [
        "softmax",
        "paper",
        "entropy cap",
        "my 'own' </script>",
        "argmax, the limit",
        "softmax, as published",
        "paper, as published",
    ]
    assert all(len(row) == len(table.header) for row in table.rows)


def test_the_best_is_in_bold_and_argmax_does_not_compete(tables):
    table = accuracy_table(tables)
    for column in range(1, len(table.header)):
        best = max(float(row[column]) for row in table.rows[:4])
        strong = [row for row, at in table.strong if at == column]
        assert strong
        assert all(float(table.rows[row][column]) == best for row in strong)
    assert all(row < 4 for row, _ in table.strong)


@pytest.mark.parametrize("field", [field.name for field in fields(Tables)])
def test_any_table_may_be_empty(tables, field):
    without = page(replace(tables, **{field: ()}), {})
    assert content(without.html())["charts"]


@pytest.mark.parametrize("field", [field.name for field in fields(Tables)])
def test_any_table_may_be_the_only_one(tables, field):
    alone = Tables(**{field: getattr(tables, field)})
    for chart in figures(alone).values():
        specification(chart)
    page(alone, {})


def test_a_report_of_nothing_is_a_page_without_figures(tmp_path):
    path = write_report(tmp_path, Tables(), {})
    assert list(tmp_path.iterdir()) == [path]
    assert "<section>" not in path.read_text(encoding="utf-8")


def test_one_seed_and_one_size_make_a_report(tmp_path):
    tables = tables_of_a_run(sizes=(16,), seeds=1, sets=2)
    html = write_report(tmp_path, tables, {}).read_text(encoding="utf-8")
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == set(FIGURES)
    assert "One seed" in html
    assert "bands" not in json.dumps(content(html))
    assert '<form class="slider" hidden>' in html


def test_infinite_and_missing_numbers_are_left_out():
    tables = tables_of_a_run(sizes=(16, 32), seeds=2, policies=("softmax", "argmax"), sets=2)
    broken = [{**row, "entropy": float("nan")} for row in tables.evaluation]
    fit = [*tables.fit, {"size": 16, "entropy": 1.0, "beta": float("inf")}]
    html = page(replace(tables, evaluation=broken, fit=fit), {}).html()
    assert "NaN" not in str(content(html))


def test_each_policy_keeps_its_colour_in_every_figure(tables):
    own = "my 'own' </script>"
    drawn = tables.lines
    assert drawn["paper"] == style.POLICIES["paper"]
    assert drawn[own] == style.SPARE[0]
    for name in ("accuracy", "entropy"):
        text = json.dumps(specification(figures(tables)[name]))
        assert style.SPARE[0].light in text


def test_the_palette_tells_policies_apart_in_light_and_in_dark():
    known = [style.POLICIES[name] for name in POLICIES]
    for colours in ([line.light for line in known], [line.dark for line in known]):
        assert len(set(colours)) == len(POLICIES)
    assert set(style.DARK) >= {line.light for line in (*known, *style.SPARE)}


def test_softmax_comes_first_and_argmax_last():
    assert style.ordered(["b", "argmax", "a", "held", "b", "softmax"]) == [
        "softmax",
        "held",
        "b",
        "a",
        "argmax",
    ]


@pytest.mark.parametrize("count", [0, 1, 2, 1499, 1500, 1501, 10_000])
def test_thinning_keeps_both_ends_and_the_order(count):
    rows = [{"i": i} for i in range(count)]
    kept = [row["i"] for row in thinned(rows, 1500)]
    assert len(kept) == min(count, 1500)
    assert kept == sorted(set(kept))
    assert kept[:1] == [0][:count]
    assert kept[-1:] == [count - 1][:count]


def test_a_page_needs_no_chart_and_then_no_vega():
    table = Table("Weights", ["head", "w"], [["1", "0.5"]], strong={(0, 1)})
    html = Page("A & B", "Lead.", [Section("S", "One.\n\nTwo.", table=table)]).html()
    assert "<h1>A &amp; B</h1>" in html
    assert "<p>One.</p>\n<p>Two.</p>" in html
    assert "<td><strong>0.5</strong></td>" in html
    assert len(html) < 20_000


def test_a_slider_starts_at_one_of_its_values():
    with pytest.raises(ValueError, match="start must be one of the values .*, got 3"):
        Slider("n", [1, 2], 3)


WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "altair":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import sharpmax
assert "sharpmax.report" not in sys.modules
import sharpmax.report
"""


def test_without_altair_the_error_says_what_to_install():
    result = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    last = result.stderr.strip().splitlines()[-1]
    assert last == (
        "ImportError: sharpmax.report needs altair, which comes with: "
        "pip install 'sharpmax[report]'"
    )


def test_the_page_s_files_are_part_of_the_package():
    import sharpmax.report.page as package

    folder = Path(package.__file__).parent
    assert {"page.css", "page.html", "page.js"} <= {path.name for path in folder.iterdir()}
