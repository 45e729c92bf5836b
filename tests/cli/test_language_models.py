"""`sharpmax diagnose` and `sharpmax evaluate` on a real model, and what they refuse."""

import csv

import pytest

from sharpmax import PAPER, Fixed, PerHead
from sharpmax.cli.terminal import named_policies

MODEL = "smollm2-135m"


def test_diagnose_leaves_tables_figures_and_a_page(run, tmp_path):
    PAPER.save(tmp_path / "mine.json")
    out = tmp_path / "out"
    mine = ["--policy", tmp_path / "mine.json", "--rows", 4]
    code, said = run("diagnose", MODEL, "--length", 64, *mine, "--out", out)
    assert code == 0
    assert "Heads by kind at 64 tokens" in said
    assert "disperses" in said
    rows = list(csv.DictReader((out / "heads.csv").read_text().splitlines()))
    assert len(rows) == 2 * 30 * 9
    assert {row["case"] for row in rows} == {"plain", "mine"}
    assert (out / "report.html").stat().st_size > 100_000
    assert list((out / "figures").glob("*.svg"))


def test_evaluate_puts_policies_side_by_side(run, tmp_path):
    out = tmp_path / "scores.csv"
    sizes = ["--length", 96, "--windows", 1, "--prompts", 1, "--depth", 0.5, "--template", "code"]
    code, said = run("evaluate", MODEL, "--policy", "paper", *sizes, "--out", out)
    assert code == 0
    assert "retrieval: code" in said
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [(row["case"], row["task"]) for row in rows] == [
        ("plain", "text, nats a token"),
        ("plain", "retrieval: code"),
        ("paper", "text, nats a token"),
        ("paper", "retrieval: code"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["diagnose", "nowhere"], "there is no model nowhere"),
        (["diagnose", MODEL, "--length", "9000"], "context of 8,192 tokens, got 9,000"),
        (["diagnose", MODEL, "--text", "missing.txt"], "there is no file missing.txt"),
        (["diagnose", MODEL, "--policy", "missing.json"], "there is no policy file missing.json"),
        (["diagnose", MODEL, "--device", "tpu"], "device must be auto, cpu or cuda, got 'tpu'"),
        (["diagnose", MODEL, "--dtype", "int8"], "dtype must be one of float32"),
        (["evaluate", MODEL, "--template", "odd"], "templates must be among code"),
        (["evaluate", MODEL, "--length", "9000"], "context of 8,192 tokens, got 9,000"),
    ],
)
def test_bad_input_is_one_line(run, arguments, message):
    code, said = run(*arguments)
    assert code == 2
    assert message in said
    assert said.count("\n") == 1


def test_a_policy_for_another_model(run, tmp_path):
    PerHead(Fixed(1.0), {"beta": [[1.0] * 9] * 12}).save(tmp_path / "policy.json")
    code, said = run("diagnose", MODEL, "--length", 64, "--policy", tmp_path / "policy.json")
    assert code == 2
    assert "12 layers of 9 heads, and LlamaForCausalLM has 30 layers of 9" in said


def test_names_that_are_taken(tmp_path):
    for name in ("plain", "paper", "mine"):
        Fixed(2.0).save(tmp_path / f"{name}.json")
    files = [str(tmp_path / f"{name}.json") for name in ("plain", "paper", "mine")]
    assert [*named_policies([*files, "paper"])] == [*files[:2], "mine", "paper"]


def test_a_policy_of_a_folder_is_called_as_the_folder(tmp_path, monkeypatch):
    for name in ("old/run", "run", "plain"):
        (tmp_path / name).mkdir(parents=True)
        Fixed(2.0).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    names = [*named_policies(["old/run/sharpmax.json", "run", "plain"])]
    assert names == ["run", "run/sharpmax.json", "plain/sharpmax.json"]


def test_an_empty_text(run, tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    code, said = run("diagnose", MODEL, "--length", 64, "--text", tmp_path / "empty.txt")
    assert code == 2
    assert "text must not be empty" in said
