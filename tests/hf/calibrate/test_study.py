"""A whole calibration: its stages, what it keeps, and that a stopped run goes on as it was."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_fit import SETTINGS, TEXT, fitting_of
from tiny_models import letters, tiny

from sharpmax import PAPER, LogLinear, PerHead, Policy
from sharpmax.hf import sharpen
from sharpmax.hf.calibrate import Check, Examples, Point, Question, calibrate, total_steps
from sharpmax.hf.calibrate.fit import Fitting
from sharpmax.hf.calibrate.folder import Folder
from sharpmax.hf.calibrate.processes import Processes
from sharpmax.hf.calibrate.study import LATER, Study


def test_a_fit_begins_slowly_and_ends_slowly(model, monkeypatch):
    rates: list[float] = []

    def step(*arguments):
        rates.append(arguments[-1])
        return 0.0

    monkeypatch.setattr(Fitting, "step", step)
    settings = dataclasses.replace(SETTINGS, steps=20, costs=(2.0, 1.0), heads=(), check_every=100)
    calibrate(model, letters(), settings, text=TEXT)
    assert rates[:2] == pytest.approx([0.1, 0.2], rel=0.01)
    assert max(rates) == rates[9]
    first, second = rates[:40], rates[40:]
    assert first[-1] < 0.1
    assert second[0] == max(second) == LATER
    assert second[-1] < 0.05


def test_a_calibration_goes_on_from_a_policy_and_tells_so(model, tmp_path):
    settings = dataclasses.replace(SETTINGS, costs=(4.0,), heads=(), learning_rate=1e-9)
    numbers = {"offset": [[0.1] * 4, [0.2] * 4], "sink": [[0.0] * 4, [1.5] * 4]}
    start = PerHead(
        LogLinear(SETTINGS.reference_length, low=0.0, high=0.0, sink_apart=True), numbers
    )

    def again(start=start):
        return calibrate(model, letters(), settings, text=TEXT, start=start, folder=tmp_path)

    with pytest.raises(TypeError, match="policy"):
        again("sharpmax.json")
    found = again()
    by_head = found.policies["cost 400%"].by_head
    assert {name: by_head[name] for name in numbers} == start.by_head
    assert found.plain.text_cost == 0
    assert "start" in json.loads((tmp_path / "cost-400.json").read_text())["about"]
    assert again().points == found.points
    with pytest.raises(ValueError, match="another calibration, with other start: choose another"):
        again(None)


@pytest.mark.parametrize("until", [5, 7])  # among the costs, and among the heads
def test_a_run_that_was_stopped_ends_like_one_that_was_not(model, tmp_path, until):
    whole = calibrate(model, letters(), SETTINGS, text=TEXT, folder=tmp_path / "a")
    steps = 0

    def stop(_: str, done: int) -> None:
        nonlocal steps
        steps += done
        if steps > until:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(model, letters(), SETTINGS, text=TEXT, folder=tmp_path / "b", tell=stop)
    assert model.config._attn_implementation == "eager"
    told: list[int] = []
    again = calibrate(
        model,
        letters(),
        SETTINGS,
        text=TEXT,
        folder=tmp_path / "b",
        tell=lambda _, done: told.append(done),
    )
    assert again.points == whole.points
    assert again.policies == whole.policies
    assert sum(told) == total_steps(SETTINGS)
    finished = calibrate(model, letters(), SETTINGS, text=TEXT, folder=tmp_path / "a")
    assert finished.points == whole.points


def test_the_folder_holds_policies_that_tell_where_they_come_from(model, tmp_path):
    found = calibrate(model, letters(), SETTINGS, text=TEXT, folder=tmp_path, name="tiny")
    assert [point.name for point in found.points] == [
        "cost 400%",
        "cost 200%",
        "further",
        "3 heads",
        "1 heads",
    ]
    assert [point.heads for point in found.points][-2:] == [3, 1]
    for point in found.points:
        path = tmp_path / f"{point.name.replace(' ', '-').rstrip('%')}.json"
        policy = Policy.load(path)
        assert policy == found.policies[point.name]
        assert isinstance(policy, PerHead)
        assert isinstance(policy.base, LogLinear)
        about = json.loads(path.read_text())["about"]
        assert about["model"] == "tiny"
        assert about["settings"]["seed"] == 0
        assert about["figures"]["point"]["retrieval"] == point.retrieval
    with sharpen(model, Policy.load(path)):
        pass
    with pytest.raises(ValueError, match="heads"):
        sharpen(tiny("llama", num_hidden_layers=1), Policy.load(path))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small calibration that is done, in its folder, with a question of the user's own."""
    path = tmp_path_factory.mktemp("finished")
    found = in_folder(path)
    return path, found


SMALL = dataclasses.replace(SETTINGS, costs=(4.0,), heads=(9, 8, 1), steps=1)
QUESTIONS = [Question(f"Who is number {i}?", "nobody") for i in range(8)]


def in_folder(path, settings=SMALL, name="tiny", text=TEXT, questions=QUESTIONS):
    model = tiny("llama", max_position_embeddings=512)
    with torch.no_grad():
        model.lm_head.weight += 1e-3 * (name == "changed")
    called = "tiny" if name == "changed" else name
    return calibrate(
        model, letters(), settings, text=text, questions=questions, folder=path, name=called
    )


def test_counts_of_heads_that_the_model_does_not_have_more_of_are_left_out(finished):
    assert [point.name for point in finished[1].points][-1] == "1 heads"
    assert not {"9 heads", "8 heads"} & {*finished[1].policies}


def test_the_users_own_questions_are_told_by_themselves(finished):
    checks = [finished[1].plain, *finished[1].points]
    assert all(check.own in (0.0, 0.5, 1.0) for check in checks)
    assert all(point.own is not None for point in finished[1].points)


def test_without_a_policy_to_keep_the_one_that_finds_most_is_shown(finished):
    found = dataclasses.replace(finished[1], kept=None)
    most = max(point.retrieval for point in found.points)
    assert found.chosen.retrieval == most
    one = dataclasses.replace(found, kept=found.points[-1])
    assert one.chosen == found.points[-1]


def test_a_run_goes_on_with_less_memory(finished):
    less = dataclasses.replace(SMALL, at_once=1, checkpointing=True)
    assert in_folder(finished[0], less).points == finished[1].points


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "other"}, "with other model: choose another folder"),
        ({"name": "changed"}, "with other weights or dtype: choose"),
        ({"text": TEXT * 2}, "with other texts or questions: choose"),
        ({"settings": dataclasses.replace(SMALL, seed=5, texts=1)}, "with other seed, texts: cho"),
    ],
)
def test_another_calibration_in_a_folder_is_refused_with_what_differs(finished, change, message):
    with pytest.raises(ValueError, match=message):
        in_folder(finished[0], **change)


def without_a_point(path):
    saved = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(saved | {"points": saved["points"][1:]}))


def of_another_shape(path):
    tensors = load_file(path / "state.safetensors")
    numbers = {name: value[:1] if "numbers" in name else value for name, value in tensors.items()}
    save_file({n: v.contiguous() for n, v in numbers.items()}, path / "state.safetensors")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: (path / "state.json").write_text("{"), "JSONDecodeError"),
        (lambda path: (path / "state.json").write_text("[]"), "TypeError"),
        (lambda path: (path / "state.safetensors").unlink(), "No such file"),
        (lambda path: (path / "state.safetensors").write_bytes(b"short"), "header"),
        (without_a_point, "points .*, policies"),
        (of_another_shape, "offset of cost 400% has another shape"),
    ],
)
def test_a_damaged_state_is_told_and_what_to_remove(finished, tmp_path, damage, reason):
    copy = Path(shutil.copytree(finished[0], tmp_path / "copy"))
    damage(copy)
    kept = (copy / "cost-400.json").read_bytes()
    expected = f"cannot be read .*{reason}.*remove state.json and state.safetensors from it"
    with pytest.raises(ValueError, match=expected):
        in_folder(copy)
    assert (copy / "cost-400.json").read_bytes() == kept


def test_a_sharpened_model_is_refused(model):
    with (
        sharpen(model, PAPER),
        pytest.raises(ValueError, match="model must have its own attention"),
    ):
        calibrate(model, letters(), SETTINGS, text=TEXT)


def test_the_best_within_the_cost_is_kept_and_nothing_that_is_no_better(model, examples):
    settings = dataclasses.replace(SETTINGS, max_text_loss=0.01)
    fitting = fitting_of(model, examples, settings)
    nowhere = Folder(None, model, "", examples, Processes())
    study = Study(fitting, settings, nowhere, lambda *_: None, {})
    study.plain = Check(
        retrieval=0.2,
        answer_loss=1.0,
        shortfall=0.8,
        text_loss=2.0,
        divergence=0.0,
        text_cost=0.0,
    )

    def point(name: str, retrieval: float, text_cost: float) -> Point:
        return Point(name, 1.0, 1, 1, retrieval, 1.0, 0.8, 2.0, 0.0, text_cost)

    dear, good, fair = point("dear", 0.9, 0.02), point("good", 0.6, 0.01), point("fair", 0.5, 0.0)
    assert study.best([dear, fair, good]) == good
    assert study.best([dear]) is None
    assert study.best([point("no better", 0.2, 0.0)]) is None


@pytest.mark.parametrize(("gain", "times"), [(1.0, 1.25), (-1.0, None)])
def test_what_lies_further_along_the_way_is_kept_while_it_helps_and_text_may_pay_for_it(
    model, examples, monkeypatch, gain, times
):
    settings = dataclasses.replace(SETTINGS, max_text_loss=0.01)
    fitting = fitting_of(model, examples, settings)
    nowhere = Folder(None, model, "", examples, Processes())
    study = Study(fitting, settings, nowhere, lambda *_: None, {})
    with torch.no_grad():
        fitting.numbers["sink"].fill_(1.0)

    def check():
        far = float(fitting.numbers["sink"].detach().mean())
        return Check(0.5, 1.0, 1 - 0.1 * gain * far, 2.0, 0.0, text_cost=0.006 * far**2)

    monkeypatch.setattr(fitting, "check", check)
    study._keep("cost 1%", 0.01, 4, check(), study._state())
    study._go_further(study.points[-1])
    if times is None:
        assert [point.name for point in study.points] == ["cost 1%"]
        return
    before, further = (study.policies[name].by_head["sink"] for name in ("cost 1%", "further"))
    assert further[1][2] == pytest.approx(times * before[1][2], abs=1e-3)
    assert study.points[-1].text_cost == pytest.approx(0.006 * times**2)
    assert (study.points[-1].steps, study.points[-1].allowed) == (4, 0.01)


def test_what_does_not_fit(model):
    with pytest.raises(ValueError, match="text has 76 tokens, and 2,560 are the least"):
        Examples(letters(), SETTINGS, TEXT[:76])
    longer = dataclasses.replace(SETTINGS, length=600)
    with pytest.raises(ValueError, match="context of 512 tokens, got 600"):
        calibrate(model, letters(), longer, text=TEXT, folder=Path("unused"))
