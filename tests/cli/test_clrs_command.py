"""`sharpmax clrs`: its data sets, and what it says of wrong values."""

import json

from sharpmax.tasks.clrs import load

SMALL = ("--algorithm", "bfs", "--algorithm", "minimum", "--size", 4, "--size", 6, "--each", 3)


def test_generate(run, tmp_path):
    code, said = run("clrs", "generate", tmp_path / "set", *SMALL, "--no-trace", "--workers", 1)
    assert code == 0, said
    assert "12 samples in 4 files" in said
    table = load(tmp_path / "set")
    assert table.num_rows == 12
    recipe = json.loads((tmp_path / "set" / "clrs.json").read_text())["recipe"]
    assert recipe == {
        "sizes": {"bfs": [4, 6], "minimum": [4, 6]},
        "seeds": [0],
        "each": 3,
        "trace": False,
    }
    code, said = run("clrs", "generate", tmp_path / "set", *SMALL, "--workers", 1)
    assert code == 2
    assert "another recipe (trace differ): choose another folder" in said


def test_wrong_values(run, tmp_path):
    for wrong, message in {
        ("--algorithm", "sort"): "got 'sort'",
        ("--size", 1): "must be at least",
        ("--split", "test"): "split must be train or val",
        ("--workers", 0): "workers must be at least 1, got 0",
    }.items():
        code, said = run("clrs", "generate", tmp_path, *wrong)
        assert code == 2
        assert message in said
        assert len(said.strip().splitlines()) == 1
