"""`sharpmax reproduce`: a whole run, and every kind of bad input in one line with exit code 2."""

import errno
import re

import pytest
import torch

from sharpmax import HELD, PAPER
from sharpmax.cli import main
from sharpmax.tasks.max_retrieval.folder import RunFolder

SMALL = ["--seeds", "2", "--steps", "200", "--batch", "16", "--size", "16", "--size", "64"]
SMALL += ["--sets", "32"]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    """Work in an empty folder, on one thread: batches this small are slower on several."""
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def sharpmax(monkeypatch, capsys):
    """Return a function that runs the command and returns exit code, output and errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["sharpmax", "reproduce", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        output = capsys.readouterr()
        return int(exit_.value.code or 0), output.out, output.err

    return run


def test_a_run_from_the_command_to_the_page(sharpmax, tmp_path):
    code, output, _ = sharpmax(*SMALL, "--out", "run")
    assert code == 0
    assert "argmax, the limit" in output
    run = tmp_path / "run"
    names = {path.name for path in run.iterdir()}
    assert {"settings.toml", "versions.json", "weights.safetensors", "report.html"} <= names
    tables = {"training", "evaluation", "comparison", "attention", "fit", "curves"}
    assert {f"{name}.csv" for name in tables} <= names
    figures = {path.name for path in (run / "figures").iterdir()}
    for figure in ("attention", "attention_sharpened", "accuracy", "entropy", "fit"):
        assert {f"{figure}.png", f"{figure}.svg"} <= figures
    weights = (run / "weights.safetensors").stat().st_mtime_ns
    (run / "report.html").unlink()
    code, again, _ = sharpmax("--config", run / "settings.toml", "--out", "run")
    assert code == 0
    assert (run / "report.html").exists()
    assert (run / "weights.safetensors").stat().st_mtime_ns == weights
    assert re.findall(r"\d+\.\d", again) == re.findall(r"\d+\.\d", output)


def write(path: str, text: str) -> str:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "swift"], "preset must be one of quick, paper, best, got 'swift'"),
        (["--size", "0"], "sizes must be at least 2 and below 2,147,483,648, got 0"),
        (["--size", "1"], "sizes must be at least 2 and below 2,147,483,648, got 1"),
        (["--seeds", "0"], "seeds must be at least 1"),
        (["--least-items", "20"], "least_items must be at most most_items, 16, got 20"),
        (["--learning-rate", "-1"], "learning_rate must be between 0 and 1"),
        (["--schedule", "linear"], "schedule must be one of"),
        (["--gumbel", "nan"], "gumbel must be at least 0 and below 2,147,483,648, got nan"),
        (["--policy", "none.json"], "there is no policy file none.json"),
        (["--training-policy", "sharp"], "there is no policy file sharp"),
        (["--config", "none.toml"], "there is no file none.toml"),
        (["--device", "tpu"], "device must be auto, cpu or cuda, got 'tpu'"),
    ],
)
def test_bad_input_is_one_line(sharpmax, tmp_path, arguments, message):
    code, _, error = sharpmax(*arguments)
    assert code == 2
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("steps = ", "is not a TOML file of settings"),
        ("stepps = 3", "there is no setting stepps"),
        ('steps = "many"', "steps must be of type int, got 'many'"),
        ("sizes = [16, 2.5]", "sizes must be a list of ints"),
    ],
)
def test_a_bad_settings_file_is_one_line(sharpmax, content, message):
    code, _, error = sharpmax("--config", write("bad.toml", content))
    assert (code, error.count("\n")) == (2, 1)
    assert message in error


def test_a_file_that_is_no_policy(sharpmax):
    code, _, error = sharpmax("--policy", write("bad.json", "{}"))
    assert (code, error.count("\n")) == (2, 1)
    assert "bad.json is not a policy file" in error


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_no_cuda_device(sharpmax):
    code, _, error = sharpmax("--device", "cuda")
    assert (code, error.count("\n")) == (2, 1)
    assert "there is no CUDA device here" in error


def test_a_folder_of_another_run_is_left_alone(sharpmax, tmp_path):
    run = tmp_path / "run"
    assert sharpmax(*SMALL, "--out", "run")[0] == 0
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    code, _, error = sharpmax(*SMALL, "--steps", "300", "--out", "run")
    assert (code, error.count("\n")) == (2, 1)
    assert "holds a run with steps = 200, not 300" in error
    assert {path: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_a_folder_of_something_else_is_left_alone(sharpmax, tmp_path):
    (tmp_path / "mine").mkdir()
    write("mine/notes.txt", "precious")
    code, _, error = sharpmax("--out", "mine")
    assert (code, error.count("\n")) == (2, 1)
    assert "holds something else than a run" in error
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    code, _, error = sharpmax("--out", "mine/notes.txt")
    assert (code, error.count("\n")) == (2, 1)


def begun(tmp_path):
    """Return a run's folder as one that was stopped in training leaves it."""
    from sharpmax.tasks.max_retrieval import Study, settings_from
    from sharpmax.tasks.max_retrieval.train import Training

    settings = settings_from(
        "quick", {"seeds": 2, "steps": 200, "batch": 16, "sizes": [16, 64], "sets": 32}
    )
    study = Study.open(tmp_path / "run", settings, torch.device("cpu"))
    training = Training(settings, study.training_policy, study.device)
    training.run(100)
    study.folder.write_tensors("checkpoint.safetensors", training.state())
    return study.folder


@pytest.mark.parametrize("damage", ["cut", "garbage", "another"])
def test_a_damaged_checkpoint_is_set_aside(sharpmax, tmp_path, damage):
    folder = begun(tmp_path)
    checkpoint = folder.path / "checkpoint.safetensors"
    if damage == "another":
        folder.write_tensors("checkpoint.safetensors", {"step": torch.tensor(1)})
    else:
        whole = checkpoint.read_bytes()
        checkpoint.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"\0" * 99)
    code, _, error = sharpmax(*SMALL, "--out", "run")
    assert (code, error.count("\n")) == (2, 1)
    assert "was set aside as checkpoint.safetensors.damaged" in error
    assert sharpmax(*SMALL, "--out", "run")[0] == 0


def test_a_full_disk(sharpmax, tmp_path, monkeypatch):
    folder = begun(tmp_path)
    checkpoint = (folder.path / "checkpoint.safetensors").read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_table", full)
        code, _, error = sharpmax(*SMALL, "--out", "run")
    assert (code, error.count("\n")) == (2, 1)
    assert "is full: make room" in error
    assert (folder.path / "checkpoint.safetensors").read_bytes() == checkpoint
    assert sharpmax(*SMALL, "--out", "run")[0] == 0


def test_ctrl_c(sharpmax, monkeypatch):
    from sharpmax.tasks.max_retrieval.train import Training

    run = Training.run

    def interrupted(self, until):
        run(self, until)
        if self.step == 100:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Training, "run", interrupted)
        code, output, _ = sharpmax(*SMALL, "--out", "run")
    assert code == 130
    assert "Traceback" not in output
    assert "the same command goes on" in output
    assert sharpmax(*SMALL, "--out", "run")[0] == 0


def test_a_policy_file_is_tested_too(sharpmax, tmp_path):
    PAPER.save(tmp_path / "mine.json")
    code, output, _ = sharpmax(*SMALL, "--policy", "mine.json", "--out", "run")
    assert code == 0
    assert "mine" in output
    HELD.save(tmp_path / "mine.json")
    code, _, error = sharpmax(*SMALL, "--policy", "mine.json", "--out", "run")
    assert (code, error.count("\n")) == (2, 1)
    assert "has changed" in error


def test_an_evaluation_of_other_blocks_is_begun_anew(sharpmax, tmp_path):
    assert sharpmax(*SMALL, "--out", "run")[0] == 0
    run = tmp_path / "run"
    before = (run / "comparison.csv").read_bytes()
    (run / "comparison.csv").unlink()
    write("run/evaluation.json", '{"rows": [], "counts": [1], "block": 1, "sums": {"softmax": 9}}')
    assert sharpmax(*SMALL, "--out", "run")[0] == 0
    assert (run / "comparison.csv").read_bytes() == before
    (run / "comparison.csv").unlink()
    write("run/evaluation.json", "[]")
    code, _, error = sharpmax(*SMALL, "--out", "run")
    assert (code, error.count("\n")) == (2, 1)
    assert "evaluation.json.damaged" in error
    assert sharpmax(*SMALL, "--out", "run")[0] == 0


def test_a_run_that_was_stopped_before_it_began(sharpmax, tmp_path):
    (tmp_path / "run").mkdir()
    write("run/device.json", '"cpu"')
    assert sharpmax(*SMALL, "--out", "run")[0] == 0


def test_a_place_that_cannot_be_a_folder(sharpmax):
    write("file", "mine")
    code, _, error = sharpmax("--out", "file/run")
    assert (code, error.count("\n")) == (2, 1)
    assert "file/run" in error
