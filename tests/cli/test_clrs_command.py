"""`sharpmax clrs`: its data sets, and what it says of wrong values."""

import csv
import json
import shutil

from sharpmax import Fixed
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


TRAINED = ("--decoder", "tiny", "--batch", 4, "--steps", 2, "--device", "cpu")


def test_train_and_evaluate(run, tmp_path):
    run("clrs", "generate", tmp_path / "train", *SMALL, "--no-trace", "--workers", 1)
    sizes = ("--size", 4, "--size", 12, "--seed", 3)
    run("clrs", "generate", tmp_path / "test", *SMALL, *sizes, "--no-trace", "--workers", 1)
    for name, more in {"plain": (), "paper": ("--policy", "paper")}.items():
        code, said = run(
            *("clrs", "train", tmp_path / "train", "--out", tmp_path / name, *TRAINED, *more),
            *("--context", 80),
        )
        assert code == 0, said
        assert "537,728 weights" in said
        assert "3 samples are over the context of 80 tokens and were left out: bfs 3" in said
    asked = ("--data", tmp_path / "test", "--out", tmp_path / "out", "--device", "cpu")
    code, said = run(
        *("clrs", "evaluate", tmp_path / "paper", tmp_path / "plain", *asked),
        *("--policy", "paper", "--policy", "plain", "--entropy-samples", 1),
    )
    assert code == 0, said
    for case in ("plain", "paper in both", "paper in training", "paper at inference"):
        assert case in said
    assert "beside plain" in said
    with (tmp_path / "out" / "answers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 2 * 3
    known = {(row["algorithm"], row["size"]): row["trained"] for row in rows}
    assert known["minimum", "6"] == "True"
    assert known["minimum", "12"] == known["bfs", "6"] == "False"  # none of bfs 6 fitted
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Right answers by size" in page
    assert (tmp_path / "out" / "figures" / "profile.png").stat().st_size > 10_000
    # What was answered stays, and is not asked again.
    kept = (tmp_path / "out" / "answers.csv").read_bytes()
    tokenizer = tmp_path / "paper" / "tokenizer.json"
    tokenizer.rename(tmp_path / "away")
    code, said = run("clrs", "evaluate", tmp_path / "paper", *asked)
    assert code == 0, said
    assert "paper at inference" in said
    assert (tmp_path / "out" / "answers.csv").read_bytes() == kept
    (tmp_path / "away").rename(tokenizer)
    weights = tmp_path / "paper" / "model.safetensors"
    weights.rename(tmp_path / "away")
    shutil.copy(tmp_path / "plain" / "model.safetensors", weights)
    code, said = run("clrs", "evaluate", tmp_path / "paper", *asked)
    assert code == 2
    assert "holds answers of another model that is called paper in both" in said
    (tmp_path / "away").rename(weights)
    other = ("--data", tmp_path / "train", "--out", tmp_path / "out")
    code, said = run("clrs", "evaluate", tmp_path / "plain", *other)
    assert code == 2
    assert "holds answers to other questions: choose another folder" in said
    code, said = run("clrs", "evaluate", tmp_path / "plain", tmp_path / "plain", *asked)
    assert code == 2
    assert "2 models are of one case and seed, plain, seed 0: give one of" in said
    code, said = run("clrs", "evaluate", tmp_path / "train", *asked)
    assert code == 2
    assert "holds no model that sharpmax clrs train has made" in said
    code, said = run("clrs", "evaluate", tmp_path / "plain", *asked, "--entropy-samples", -1)
    assert code == 2
    assert "entropy_samples must be at least 0, got -1" in said


def test_ctrl_c(run, tmp_path, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    given = ("clrs", "generate", tmp_path / "set", *SMALL, "--no-trace", "--workers", 1)
    with monkeypatch.context() as patch:
        patch.setattr("sharpmax.tasks.clrs.data.samples", stopped)
        code, said = run(*given)
    assert code == 130
    assert "Stopped; the same command goes on from" in said
    assert run(*given)[0] == 0


def test_what_is_pooled_and_what_is_measured_later(run, tmp_path):
    given = ("--algorithm", "minimum", "--size", 4, "--each", 3, "--no-trace", "--workers", 1)
    run("clrs", "generate", tmp_path / "set", *given)
    train = ("clrs", "train", tmp_path / "set", "--decoder", "tiny", "--batch", 2)
    train += ("--device", "cpu", "--context", 80)
    for name, more in {"one": (), "other": ("--seed", 1), "longer": ("--seed", 2)}.items():
        steps = 2 if name == "longer" else 1
        code, said = run(*train, "--out", tmp_path / name, "--steps", steps, *more)
        assert code == 0, said
    evaluate = ("clrs", "evaluate", "--data", tmp_path / "set", "--device", "cpu")
    evaluate += ("--out", tmp_path / "out")
    code, said = run(*evaluate, tmp_path / "one", tmp_path / "longer")
    assert code == 2
    assert "are both called plain, and differ in more than the seed" in said
    for beta in (2.0, 3.0):
        (tmp_path / str(beta)).mkdir()
        Fixed(beta).save(tmp_path / str(beta) / "own.json")
    policies = [part for b in (2.0, 3.0) for part in ("--policy", tmp_path / str(b) / "own.json")]
    for samples in (0, 1):
        code, said = run(
            *(*evaluate, tmp_path / "one", tmp_path / "other", *policies),
            *("--entropy-samples", samples),
        )
        assert code == 0, said
        with (tmp_path / "out" / "answers.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 3 * 2  # plain and both policies, of two seeds
        with (tmp_path / "out" / "entropies.csv").open() as file:
            assert len(list(csv.DictReader(file))) == 6 * samples * 2 * 2
    code, said = run(*evaluate, tmp_path / "longer")
    assert code == 2
    assert "holds answers of another model that is called plain" in said


def test_what_cannot_be_trained(run, tmp_path):
    run("clrs", "generate", tmp_path / "set", *SMALL, "--no-trace", "--workers", 1)
    for wrong, message in {
        ("--decoder", "huge"): "decoder must be one of tiny, small, medium, got 'huge'",
        ("--preset", "big"): "preset must be one of quick, gpu, got 'big'",
        ("--policy", "nothing"): "there is no policy file nothing",
        ("--steps", 0): "steps must be at least 1, got 0",
        ("--lora", 4): "lora updates weights that are there already: give a model as well",
        ("--context", 16): "fits into a context of 16 tokens",
        ("--model", tmp_path / "no"): "there is no model",
    }.items():
        given = ("clrs", "train", tmp_path / "set", "--out", tmp_path / "m", "--device", "cpu")
        code, said = run(*given, *wrong)
        assert code == 2
        assert message in said
        assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "m").exists()
    for name in ("minimum", "nonsense"):
        wrong = ("--preset", "quick", "--algorithm", name)
        code, said = run("clrs", "generate", tmp_path / "q", *wrong)
        assert code == 2
        assert f"algorithms of quick are insertion_sort, quicksort, got '{name}'" in said
    code, said = run("clrs", "generate", tmp_path / "q", "--preset", "big")
    assert code == 2
    assert "preset must be one of quick, gpu" in said
