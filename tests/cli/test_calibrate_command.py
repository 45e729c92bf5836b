"""`sharpmax calibrate` on a tiny model, and what it refuses."""

import csv
import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "hf"))
from tiny_models import letters, tiny

from sharpmax.hf.calibrate import RIVALS, comparison
from sharpmax.hf.calibrate.fit import Fitting

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


TEXT = "It was the best of times, it was the worst of times. " * 150
QUESTION = '{"prompt": "How many legs has a spider?", "answer": "eight"}\n'


@pytest.fixture(scope="module")
def asked(folder, tmp_path_factory):
    """A command without its --compared, and where it writes."""
    path = tmp_path_factory.mktemp("calibration")
    (path / "text.txt").write_text(TEXT)
    (path / "questions.jsonl").write_text(QUESTION * 8)
    given = "--text", path / "text.txt", "--questions", path / "questions.jsonl"
    return ["calibrate", folder, *SHORT, *given, "--out", path / "out"]


@pytest.fixture
def finished(run, asked):
    """What the command leaves, and what it said; it is done once."""
    out = asked[-1]
    said = out / "said.txt"
    if not said.exists():
        code, told = run(*asked, "--compared", 1)
        said.write_text(f"{code} {told}")
    return out


def cases(path: Path) -> list[str]:
    return list(dict.fromkeys(row["case"] for row in rows(path / "comparison.csv")))


def test_it_leaves_policies_tables_figures_and_a_page(finished, folder):
    code, _, said = (finished / "said.txt").read_text().partition(" ")
    if code == "0":
        assert "On prompts and text that were not fitted to" in said
        assert "of your own" in said
    else:
        assert "none is kept" in said
    assert (code == "0") == (finished / "sharpmax.json").exists()
    assert [row["name"] for row in rows(finished / "points.csv")] == ["cost 900%", "2 heads"]
    assert {*cases(finished)[1:3]} == {"cost 900%", "2 heads"}
    assert [cases(finished)[0], *cases(finished)[3:]] == ["plain", *RIVALS]
    assert len(rows(finished / "heads.csv")) == 2 * 4
    assert json.loads((finished / "2-heads.json").read_text())["about"]["model"] == folder.name
    assert (finished / "report.html").stat().st_size > 100_000
    assert list((finished / "figures").glob("*.png"))


@pytest.mark.parametrize("compared", [1, 0])
def test_what_is_done_is_not_done_again(run, asked, finished, monkeypatch, compared):
    for module, name in ((Fitting, "step"), (comparison, "rivals"), (comparison, "by_case")):
        monkeypatch.setattr(module, name, None)
    kept = {name: (finished / name).read_bytes() for name in ("points.csv", "comparison.csv")}
    (finished / "report.html").unlink()
    code, _ = run(*asked, "--compared", compared)
    assert str(code) == (finished / "said.txt").read_text().partition(" ")[0]
    assert kept == {name: (finished / name).read_bytes() for name in kept}
    assert "Beside other policies" in (finished / "report.html").read_text()


def test_a_comparison_that_was_stopped_goes_on(run, asked, finished, tmp_path, monkeypatch):
    out = Path(shutil.copytree(finished, tmp_path / "copy"))
    whole = rows(out / "comparison.csv")
    left = [row for row in whole if row["case"] not in ("held", "entropy caps")]
    told: list[str] = []
    by_case = comparison.by_case

    def listening(model, tokenizer, policies, *others):
        told.extend(policies)
        return by_case(model, tokenizer, policies, *others)

    monkeypatch.setattr(comparison, "by_case", listening)
    with (out / "comparison.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, whole[0].keys())
        writer.writeheader()
        writer.writerows(left[:-1])  # of "one β" something is missing
    run(*asked[:-1], out, "--compared", 1)
    assert told == ["held", "one β", "entropy caps"]
    assert rows(out / "comparison.csv") == whole


def test_what_is_begun_anew_takes_no_comparison_of_a_run_before(run, asked, finished, tmp_path):
    copy = Path(shutil.copytree(finished, tmp_path / "copy"))
    (copy / "state.json").unlink()
    before = (copy / "comparison.csv").read_bytes()
    run(*asked[:-1], copy, "--seed", 5, "--compared", 0)
    assert not (copy / "comparison.csv").exists()
    assert (copy / "comparison.csv.before").read_bytes() == before


def test_it_goes_on_from_a_policy(run, asked, finished, tmp_path):
    go_on = [*asked[:-1], tmp_path / "more", "--compared", 0, "--start"]
    run(*go_on, finished / "cost-900.json")
    assert "start" in json.loads((tmp_path / "more" / "cost-900.json").read_text())["about"]
    code, said = run(*go_on, tmp_path / "nowhere.json")
    assert code == 2
    assert "nowhere.json to start from" in said.replace("\n", " ")
    code, said = run(*go_on, finished / "cost-900.json", "--no-sink", "--out", tmp_path / "other")
    assert code == 2
    assert "start must be fitted as it goes on: it has sink_apart True, not False" in said


@pytest.mark.usefixtures("finished")
def test_another_calibration_in_the_folder_is_refused(run, asked):
    code, said = run(*asked, "--seed", 5)
    assert code == 2
    assert "holds another calibration, with other seed: choose another folder" in said


@pytest.mark.parametrize("during", ["fit", "comparison"])
def test_ctrl_c_says_that_the_same_command_goes_on(
    run, asked, finished, tmp_path, monkeypatch, during
):
    def stop(*_):
        raise KeyboardInterrupt

    out = Path(shutil.copytree(finished, tmp_path / "copy"))
    if during == "fit":
        (out / "state.json").unlink()
        monkeypatch.setattr(Fitting, "step", stop)
    else:
        (out / "comparison.csv").unlink()
        monkeypatch.setattr(comparison, "by_case", stop)
    code, said = run(*asked[:-1], out, "--compared", 1)
    assert code == 130
    assert "Stopped; the same command goes on from" in said


@pytest.mark.parametrize(
    ("name", "held", "message"),
    [
        ("--questions", "", "given.txt: there are no questions in it"),
        ("--questions", QUESTION + "{}", "given.txt: line 2 must have 'prompt' as text, got None"),
        ("--text", "  ", "given.txt is empty"),
    ],
)
def test_a_file_that_cannot_be_is_named(run, folder, tmp_path, name, held, message):
    (tmp_path / "given.txt").write_text(held)
    code, said = run("calibrate", folder, name, tmp_path / "given.txt", "--out", tmp_path / "out")
    assert code == 2
    assert message in said.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-text-loss", "little"], "must be a share such as 1%, 100% or 0.01, got 'little'"),
        (
            ["--max-text-loss", "1"],
            "max-text-loss must be a share such as 1%, 100% or 0.01, got '1'",
        ),
        (["--length", "100"], "length must be at least that of the shortest prompts"),
        (["--template", "odd"], "templates must be among"),
        (["--compared", "-1"], "compared must be at least 0"),
        (["--text", "missing.txt"], "there is no file missing.txt"),
        (["--questions", "missing.jsonl"], "there is no file missing.jsonl"),
        (["--questions", __file__], "line 1 is not JSON"),
        (["--own", "100%"], "--own is the share of --questions, and there are none"),
        (["--own", "1"], "must be a share such as 1%, 100% or 0.01, got '1'"),
        (["--heads", "0", "--heads", "2"], "heads must be fewer and fewer, and at least 1"),
        (["--max-text-loss", "-1%"], "max_text_loss must be at least 0, got -0.01"),
        (["--learning-rate", "inf"], "learning_rate must be finite, got inf"),
        (["--length", "100000"], "context of 1,024 tokens, got 100,000"),
        (["--length", "2000"], "context of 1,024 tokens, got 2,000"),
        (["--length", "300"], "the prompts of 'magic number' do not fit"),
    ],
)
def test_what_cannot_be_is_one_line(run, folder, tmp_path, arguments, message):
    code, said = run("calibrate", folder, *arguments, "--out", tmp_path / "out")
    assert code == 2
    assert message in said
    assert "Traceback" not in said
