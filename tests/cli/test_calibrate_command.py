"""`sharpmax calibrate` on a tiny model, and what it refuses."""

import csv
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "hf"))
from tiny_models import letters, tiny

from sharpmax.hf.calibrate import RIVALS

SHORT = (
    *("--length", 660, "--steps", 1, "--cost", "900%", "--heads", 2, "--prompts", 2, "--texts", 1),
    *("--max-text-loss", "900%", "--check-prompts", 1, "--check-texts", 2),
)


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tiny("llama", max_position_embeddings=1024).save_pretrained(path)
    letters().save_pretrained(path)
    return path


def test_it_leaves_policies_tables_figures_and_a_page(run, folder, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("It was the best of times, it was the worst of times. " * 300)
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"prompt": "How many legs has a spider?", "answer": "eight"}\n' * 8)
    out = tmp_path / "out"
    asked = ["calibrate", folder, *SHORT, "--text", text, "--out", out, "--questions", questions]
    code, said = run(*asked, "--compared", 1)
    assert code or "On prompts and text that were not fitted to" in said
    assert (code == 0) == (out / "sharpmax.json").exists()
    assert code == 0 or "none is kept" in said
    assert [row["name"] for row in rows(out / "points.csv")] == ["cost 900%", "2 heads"]
    cases = list(dict.fromkeys(row["case"] for row in rows(out / "comparison.csv")))
    assert {*cases[1:3]} == {"cost 900%", "2 heads"}
    assert [cases[0], *cases[3:]] == ["plain", *RIVALS]
    assert len(rows(out / "heads.csv")) == 2 * 4
    assert json.loads((out / "2-heads.json").read_text())["about"]["model"] == folder.name
    assert (out / "report.html").stat().st_size > 100_000
    assert list((out / "figures").glob("*.png"))
    points = (out / "points.csv").read_bytes()
    again, _ = run(*asked, "--compared", 0)  # what is done is not done again
    assert again == code
    assert (out / "points.csv").read_bytes() == points
    more = tmp_path / "more"
    go_on = [*asked[: asked.index("--out")], "--compared", 0, "--out", more, "--start"]
    run(*go_on, out / "cost-900.json")
    assert "start" in json.loads((more / "cost-900.json").read_text())["about"]
    code, said = run(*go_on, tmp_path / "nowhere.json")
    assert code == 2
    assert "nowhere.json to start from" in said.replace("\n", " ")
    code, said = run(*asked, "--seed", 5)
    assert code == 2
    assert "other settings, of another model" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-text-loss", "little"], "must be a share such as 1% or 0.01, got 'little'"),
        (["--max-text-loss", "1"], "max-text-loss must be a share such as 1% or 0.01, got '1'"),
        (["--length", "100"], "length must be at least that of the shortest prompts"),
        (["--template", "odd"], "templates must be among"),
        (["--compared", "-1"], "compared must be at least 0"),
        (["--text", "missing.txt"], "there is no file missing.txt"),
        (["--questions", "missing.jsonl"], "there is no file missing.jsonl"),
        (["--questions", __file__], "line 1 is not an object with a prompt and an answer"),
        (["--length", "2000"], "context of 1,024 tokens, got 2,000"),
        (["--length", "300"], "the prompts of 'magic number' do not fit"),
    ],
)
def test_what_cannot_be_is_one_line(run, folder, tmp_path, arguments, message):
    code, said = run("calibrate", folder, *arguments, "--out", tmp_path / "out")
    assert code == 2
    assert message in said
    assert "Traceback" not in said
