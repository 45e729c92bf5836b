"""The report of CLRS-Text: what is pooled, who wins, and what the page says."""

import json

import pytest

from sharpmax.report.clrs import Tables, figures, page
from sharpmax.report.clrs.report import finding, summary_table


def row(case, algorithm, size, right, *, trained=False, seed=0, asked=100, too_long=0):
    """Of a model that was trained on sizes up to 8."""
    return {
        "case": case,
        "seed": seed,
        "algorithm": algorithm,
        "size": size,
        "trained": trained,
        "beyond": size > 8,
        "right": right,
        "asked": asked,
        "too_long": too_long,
    }


@pytest.fixture
def tables():
    answers = []
    for seed in (0, 1):
        for case, beyond in {"plain": (20, 50, 60), "paper in both": (60, 52, 20)}.items():
            for algorithm, right in zip(("bfs", "dfs", "minimum"), beyond, strict=True):
                answers.append(row(case, algorithm, 4, 95, trained=True, seed=seed))
                answers.append(row(case, algorithm, 6, 90, seed=seed))
                answers.append(row(case, algorithm, 8, 95, trained=True, seed=seed))
                answers.append(row(case, algorithm, 16, right, seed=seed, too_long=1))
    entropies = [
        {"case": c, "size": s, "layer": 0, "head": h, "entropy": s / 10 + h, "share": 0.5}
        for c in ("plain", "paper in both")
        for s in (4, 16)
        for h in (0, 1)
    ]
    return Tables(answers, entropies)


def test_beyond_is_above_all_sizes_that_were_trained_on(tables):
    assert {row["size"] for row in tables.beyond()} == {16}
    pooled = {(r["case"], r["algorithm"]): r for r in tables.pooled("case", "algorithm")}
    assert pooled["plain", "bfs"]["asked"] == 800
    assert pooled["plain", "bfs"]["right"] == 2 * (95 + 90 + 95 + 20)


def test_what_is_beyond_does_not_depend_on_what_else_was_asked():
    tables = Tables([row("plain", "bfs", 16, 20), row("paper in both", "bfs", 16, 60)])
    assert finding(tables).startswith("Plain answers 20% rightly beyond the sizes that it was")
    assert tables.outcomes() == {"paper in both": {"bfs": "won"}}
    assert not Tables([row("plain", "bfs", 6, 20)]).beyond()


def test_who_wins(tables):
    assert tables.outcomes() == {"paper in both": {"bfs": "won", "dfs": "tied", "minimum": "lost"}}
    told = finding(tables)
    assert "Plain answers 95% rightly at the sizes that it was trained on" in told
    assert "of 3 algorithms 1 won, 1 tied, 1 lost" in told
    table = summary_table(tables)
    assert [cells[0] for cells in table.rows] == ["plain", "paper in both"]
    assert table.rows[1][4:] == ["1", "1", "1", "6"]


def test_page_and_figures(tables, tmp_path):
    drawn = figures(tables)
    assert list(drawn) == ["profile", "entropy"]
    spec = json.dumps(drawn["profile"].to_dict())
    assert "triangle-up" in spec
    text = page(tables, {"data": "x"}).write(tmp_path / "page.html").read_text()
    assert "Dispersion" in text
    without = Tables(tables.answers)
    assert list(figures(without)) == ["profile"]
    assert "Dispersion" not in page(without, {}).write(tmp_path / "b.html").read_text()


def test_nothing_asked():
    with pytest.raises(ValueError, match="at least one row, got none"):
        Tables([])
    only = Tables([row("plain", "bfs", 4, 0, asked=0, too_long=5)])
    assert only.pooled("case") == []
    assert finding(only) == ""
