"""Calibration: what is fitted, what stays as it was, and that a stopped run goes on as it was."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch
from tiny_models import letters, tiny

from sharpmax import LogLinear, PerHead, Policy
from sharpmax.hf import sharpen
from sharpmax.hf.branches import alike
from sharpmax.hf.calibrate import (
    CASES,
    Check,
    Examples,
    Point,
    Question,
    Settings,
    calibrate,
    head_changes,
    rivals,
    total_steps,
)
from sharpmax.hf.calibrate.curvature import step_lengths
from sharpmax.hf.calibrate.entropies import Entropies, text_entropies
from sharpmax.hf.calibrate.examples import ENDS
from sharpmax.hf.calibrate.fit import Fitting
from sharpmax.hf.calibrate.losses import Q, answer_logits, answer_losses, shortfall
from sharpmax.hf.calibrate.processes import Processes
from sharpmax.hf.calibrate.settings import CHECKED
from sharpmax.hf.calibrate.study import _Folder, _Study
from sharpmax.hf.calibrate.tie import Tie
from sharpmax.hf.evaluate import text_losses
from sharpmax.hf.reader import Reader
from sharpmax.tasks.key_value import HELD_OUT, TEMPLATES, Prompt

SETTINGS = Settings(
    length=320,
    shortest=256,
    reference_length=32,
    costs=(4.0, 2.0),
    steps=2,
    heads=(3, 1),
    prompts=3,
    asked=2,
    texts=2,
    weighings=1,
    check_every=1,
    check_prompts=1,
    check_texts=2,
    max_text_loss=10.0,
    entropy=True,
)
TEXT = "The quick brown fox jumps over the lazy dog; nobody knows why it does so. " * 80


@pytest.fixture
def model():
    return tiny("llama", max_position_embeddings=512)


@pytest.fixture(scope="module")
def examples():
    return Examples(letters(), SETTINGS, TEXT)


def fitting_of(model, examples, settings=SETTINGS, processes=None):
    return Fitting(model, examples, settings, processes or Processes())


def loss_of_answers(fitting, batch) -> float:
    with torch.no_grad(), sharpen(fitting.model, fitting.policy()):
        return float(fitting._loss(batch.prompts, [], None, 0.0)[0])


def test_steps_lower_the_loss_of_what_is_fitted_to_and_leave_the_weights_alone(model, examples):
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    fitting, batch = fitting_of(model, examples), examples.batch(1)
    plain = loss_of_answers(fitting, batch)
    for _ in range(12):
        fitting.step(batch, tie=0.0)
    assert loss_of_answers(fitting, batch) < plain - 1e-3
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    assert all(weight.requires_grad for weight in model.parameters())
    assert model.config._attn_implementation == "eager"
    assert not model.training


def test_a_tie_keeps_down_what_text_pays(model, examples):
    batch, found = examples.batch(1), []
    plain = fitting_of(model, examples).check().text_loss
    for tie in (0.0, 1000.0):
        fitting = fitting_of(model, examples)
        for _ in range(8):
            fitting.step(batch, tie)
        check = fitting.check()
        found.append(check.divergence + check.text_loss - plain)
    assert found[1] < min(0, found[0]) - 1e-5


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("sink", [False, True])
def test_gradients_are_those_of_differences(examples, entropy, sink):
    model = tiny("llama", max_position_embeddings=512).double()
    settings = dataclasses.replace(SETTINGS, entropy=entropy, sink=sink)
    fitting = fitting_of(model, examples, settings)
    assert len(fitting.numbers) == (2 + 2 * entropy) * (1 + sink)
    fitting.numbers = {
        name: (0.1 * torch.randn(2, 4, dtype=torch.float64)).requires_grad_()
        for name in fitting.numbers
    }
    # What a layer does to the entropies above it is left out, so these must not matter there.
    with torch.no_grad():
        for name in {"below", "above", "sink_below", "sink_above"} & {*fitting.numbers}:
            fitting.numbers[name][1] = 0.0
    batch = examples.batch(1)
    with torch.no_grad():
        original = fitting.reader.states(batch.texts)

    def loss() -> torch.Tensor:
        with sharpen(model, PerHead(fitting._base_in_fit(), fitting._masked())):
            return fitting._loss(batch.prompts, batch.texts, original, 2.0)[0]

    gradients = torch.autograd.grad(loss(), list(fitting.numbers.values()))
    for (name, value), gradient in zip(fitting.numbers.items(), gradients, strict=True):
        for layer in (0, 1):
            ends = []
            for sign in (1, -1):
                with torch.no_grad():
                    value[layer, 2] += sign * 1e-2
                    ends.append(float(loss()))
                    value[layer, 2] -= sign * 1e-2
            expected = (ends[0] - ends[1]) / 2e-2
            found = float(gradient[layer, 2])
            assert found == pytest.approx(expected, rel=0.01, abs=1e-5), (name, layer)


@pytest.mark.parametrize(
    "change", [{"at_once": 1}, {"at_once": 2}, {"checkpointing": True}], ids=str
)
def test_less_memory_gives_the_same_step(model, examples, change):
    results = []
    for settings in (
        dataclasses.replace(SETTINGS, at_once=5),
        dataclasses.replace(SETTINGS, **change),
    ):
        fitting = fitting_of(model, examples, settings)
        fitting.weigh()
        fitting.step(examples.batch(1), 3.0)
        results.append({name: value.grad.clone() for name, value in fitting.numbers.items()})
    for name, gradient in results[0].items():
        torch.testing.assert_close(results[1][name], gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["mistral", "gpt_oss", "gemma2"])
def test_layers_without_a_sink_and_models_that_cannot_branch_are_fitted_too(examples, name):
    model = tiny(name, max_position_embeddings=512)
    fitting = fitting_of(model, examples)
    assert fitting.reader.can_branch == (name != "gpt_oss")
    fitting.weigh()
    fitting.step(examples.batch(1), 1.0)
    assert bool((fitting.numbers["offset"] != 0).any())
    assert bool((fitting.numbers["sink"] != 0).any()) == (name != "mistral")
    assert 0 <= fitting.check().retrieval <= 1


def test_only_some_heads_stay_changed(model, examples):
    fitting = fitting_of(model, examples)
    for step in range(3):
        fitting.step(examples.batch(step), 1.0)
    largest = fitting.changes().flatten().argmax()
    fitting.keep_heads(2)
    fitting.step(examples.batch(3), 1.0)
    changed = fitting.changes().flatten() > 0
    assert changed.sum() == 2
    assert changed[largest]
    changes = head_changes(fitting.policy(), SETTINGS.length)
    numbers = [dataclasses.astuple(change)[2:] for change in changes]
    assert sum(any(of_head) for of_head in numbers) == 2


def test_numbers_that_text_hardly_feels_take_longer_steps():
    felt = torch.tensor([1e-9, 0.5, 1.0, 2.0, 1e9, 0.0])
    lengths = step_lengths({"offset": felt, "sink": 1e-6 * felt})  # by kind: γ is felt less than β
    expected = torch.tensor([2.0, 2**0.5, 1.0, 0.5**0.5, 0.5, 2.0])
    torch.testing.assert_close(lengths, {"offset": expected, "sink": expected})


def test_an_answer_is_as_likely_as_all_its_tokens_together():
    prompts = [Prompt([0], [2, 1, 0], 0.0, 2), Prompt([0], [1], 0.0, 2)]
    logits = [torch.randn(3, 4), torch.randn(1, 4)]
    likely = [row.softmax(-1) for row in logits]
    expected = [likely[0][0, 2] * likely[0][1, 1] * likely[0][2, 0], likely[1][0, 1]]
    torch.testing.assert_close(
        answer_losses(logits, prompts, whole=True).neg().exp(), torch.stack(expected)
    )


def test_answers_out_of_reach_pull_least():
    losses = torch.tensor([0.0, 0.5, 4.0, 40.0], requires_grad=True)
    pulls = torch.autograd.grad(shortfall(losses).sum(), losses)[0]
    torch.testing.assert_close(pulls, torch.exp(-Q * losses.detach()))
    short = shortfall(losses).tolist()
    assert short[0] == 0
    assert short == sorted(short)
    assert short[-1] <= 1 / Q


def test_a_fit_goes_on_from_a_policy(model, examples):
    earlier = fitting_of(model, examples)
    earlier.step(examples.batch(1), tie=0.0)
    fitting = fitting_of(model, examples)
    fitting.start(fitting.numbers_of(earlier.policy()))
    fitting.weigh()  # changes the steps, and not where they begin
    for name, value in fitting.policy().by_head.items():
        wanted = torch.tensor(earlier.policy().by_head[name])
        torch.testing.assert_close(torch.tensor(value), wanted, atol=2e-4, rtol=0)
        assert bool(wanted.any())


def test_a_fit_begins_slowly_and_ends_slowly(model, monkeypatch):
    rates: list[float] = []

    def step(*arguments):
        rates.append(arguments[-1])
        return 0.0

    monkeypatch.setattr(Fitting, "step", step)
    settings = dataclasses.replace(SETTINGS, steps=20, costs=(1.0,), heads=(), check_every=100)
    calibrate(model, letters(), settings, text=TEXT)
    assert rates[:2] == pytest.approx([0.1, 0.2], rel=0.01)
    assert max(rates) == rates[9]
    assert rates[-1] < 0.1


def test_a_calibration_goes_on_from_a_policy_and_tells_so(model, tmp_path):
    settings = dataclasses.replace(SETTINGS, costs=(4.0,), heads=(), learning_rate=1e-9)
    numbers = {"offset": [[0.1] * 4, [0.2] * 4], "sink": [[0.0] * 4, [1.5] * 4]}
    start = PerHead(LogLinear(SETTINGS.reference_length), numbers)

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
    with pytest.raises(ValueError, match="other settings"):
        again(None)


def test_a_policy_that_a_fit_cannot_go_on_from(model, examples):
    fitting = fitting_of(model, examples, dataclasses.replace(SETTINGS, sink=False))
    ones, base = [[1.0] * 4] * 2, LogLinear(SETTINGS.reference_length)
    for policy, message in (
        (base, "that calibrate has made, got LogLinear"),
        (PerHead(base, {"offset": [1.0] * 4}), r"layers and heads, \(2, 4\), got \(4,\)"),
        (PerHead(base, {"offset": [[1.0] * 4]}), r"layers and heads, \(2, 4\), got \(1, 4\)"),
        (PerHead(LogLinear(64), {"offset": ones}), "reference_length=32.* got .*=64"),
        (PerHead(LogLinear(32, 0.5), {"sink": ones}), "got one to LogLinear.*offset=0.5"),
        (PerHead(base, {"sink": ones}), "sink, which is not fitted here"),
    ):
        with pytest.raises(ValueError, match=message):
            fitting.numbers_of(policy)


def test_the_band_of_a_head_moves_with_the_length():
    lengths = torch.arange(64.0, 1064.0, dtype=torch.float64)[None]
    noise = torch.linspace(-1, 1, 1000, dtype=torch.float64)[torch.randperm(1000)]
    band = Entropies((0.7 * lengths.log() + 2 + noise)[:, None], lengths).band(0.8)
    assert float(band["drift"]) == pytest.approx(0.7, abs=0.1)
    assert float(band["high"] - band["low"]) == pytest.approx(1.6, abs=0.1)


def test_entropies_are_those_of_the_models_own_weights(model, examples):
    text = examples.fitted_texts()[0]
    found = text_entropies(Reader(model), [text])
    weights = model(torch.tensor([text]), output_attentions=True).attentions
    wanted = torch.stack([torch.special.entr(w[0]).sum(-1)[:, 63::4] for w in weights])
    torch.testing.assert_close(found.values.float(), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("until", [5, 8])  # among the costs, and among the heads
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
    with pytest.raises(ValueError, match="other settings, of another model"):
        calibrate(model, letters(), SETTINGS, text=TEXT, folder=tmp_path, name="other")
    with torch.no_grad():
        model.lm_head.weight += 1e-3
    with pytest.raises(ValueError, match="other settings, of another model"):
        calibrate(model, letters(), SETTINGS, text=TEXT, folder=tmp_path, name="tiny")
    with torch.no_grad():
        model.lm_head.weight -= 1e-3
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(ValueError, match="remove the folder to begin anew"):
        calibrate(model, letters(), SETTINGS, text=TEXT, folder=tmp_path, name="tiny")


def test_the_best_within_the_cost_is_kept_and_nothing_that_is_no_better(model, examples):
    settings = dataclasses.replace(SETTINGS, max_text_loss=0.01)
    fitting = fitting_of(model, examples, settings)
    nowhere = _Folder(None, model, "", examples, Processes())
    study = _Study(fitting, settings, nowhere, lambda *_: None, {})
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


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(os.path.join(folder, "store"), 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = tiny("llama", max_position_embeddings=512)
    fitting = fitting_of(model, Examples(letters(), SETTINGS, TEXT), processes=Processes.here())
    fitting.weigh()
    fitting.step(fitting.examples.batch(1), 2.0)
    gradients = {name: value.grad for name, value in fitting.numbers.items()}
    torch.save(gradients, os.path.join(folder, f"{rank}.pt"))
    torch.distributed.destroy_process_group()


def test_two_processes_take_the_step_of_one(model, examples, tmp_path):
    torch.multiprocessing.spawn(_work, (str(tmp_path),), nprocs=2)
    fitting = fitting_of(model, examples)
    fitting.weigh()
    fitting.step(examples.batch(1), 2.0)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, value in fitting.numbers.items():
            torch.testing.assert_close(found[name], value.grad, rtol=1e-3, atol=1e-5)


def test_rivals_fit_the_model(model, examples):
    cases = rivals(model, examples)
    assert list(cases) == ["plain", "paper", "held", "log length", "one β", "entropy caps"]
    assert len(cases) + 1 == CASES
    tokens = torch.tensor(examples.fitted_texts()[:1])
    for policy in cases.values():
        if policy is not None:
            with torch.no_grad(), sharpen(model, policy):
                assert model(tokens).logits.isfinite().all()


def test_questions_of_the_users_own_are_every_other_prompt():
    questions = [Question(f"Who is number {i}?", "nobody") for i in range(8)]
    examples = Examples(letters(), SETTINGS, TEXT, questions)
    read = letters().decode
    first = [prompts[0] for prompts in examples.batch(0).prompts]
    own = [p for p in first if "Who" in read(p.tokens).replace(" ", "")]
    assert len(own) == 2
    checked = examples.checked_prompts()[-2:]
    assert [read(p.tokens).replace(" ", "")[-2] for [p] in checked] == ["3", "7"]
    alone = Examples(letters(), dataclasses.replace(SETTINGS, own=1), TEXT, questions)
    every = [*alone.batch(0).prompts, *alone.checked_prompts()]
    assert len(every) == SETTINGS.prompts + 2
    assert all("Who" in read(p.tokens).replace(" ", "") for [p] in every)
    with pytest.raises(ValueError, match="own must be a share from 0 to 1, got 2"):
        dataclasses.replace(SETTINGS, own=2)
    with pytest.raises(ValueError, match="questions must be at least 4, got 1"):
        Examples(letters(), SETTINGS, TEXT, questions[:1])
    with pytest.raises(ValueError, match="more than the length of 320"):
        Examples(letters(), SETTINGS, TEXT, [Question("a" * 400, "b")] * 4)


def test_some_prompts_ask_for_the_first_line_or_the_last(examples):
    groups = [prompts for step in range(30) for prompts in examples.batch(step).prompts]
    depths = [prompt.depth for prompts in groups for prompt in prompts]
    ends = sum(depth in (0, 1) for depth in depths) / len(depths)
    assert ENDS < ends < 1


def test_prompts_of_a_group_share_a_text_and_ask_for_different_lines(examples):
    for prompts in (prompts for step in range(10) for prompts in examples.batch(step).prompts):
        assert 1 <= len(prompts) <= SETTINGS.asked
        assert len({prompt.depth for prompt in prompts}) == len(prompts)
        assert alike([prompt.tokens for prompt in prompts]) > SETTINGS.shortest // 2


def test_questions_read_together_are_answered_as_each_by_itself(examples):
    model = tiny("llama", max_position_embeddings=512).double()
    reader, groups = Reader(model), examples.batch(1).prompts
    assert reader.can_branch
    with torch.no_grad(), sharpen(model, LogLinear(32, 0.3, 0.2)):
        together = answer_logits(reader, groups)
        for prompts, found in zip(groups, together, strict=True):
            for prompt, logits in zip(prompts, found, strict=True):
                (alone,) = answer_logits(reader, [[prompt]])[0]
                torch.testing.assert_close(logits, alone)
                whole = model(torch.tensor([[*prompt.tokens, *prompt.answer]])).logits[0]
                wanted = whole[len(prompt.tokens) - 1 : -1]
                torch.testing.assert_close(logits, wanted.to(logits), rtol=1e-5, atol=1e-6)


def test_templates_are_for_one_thing_each():
    settings = Settings()
    assert not {*settings.templates} & {*CHECKED, *HELD_OUT}
    assert {*settings.templates, *CHECKED, *HELD_OUT} == {*TEMPLATES}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 100}, "length must be at least that of the shortest prompts, 256, got 100"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"costs": (-1.0,)}, "costs must be at least 0"),
        ({"drawn": 2.0}, "drawn must be a share from 0 to 1, got 2.0"),
        ({"heads": (0,)}, "heads must be at least 1"),
        ({"templates": ("odd",)}, "templates must be among code"),
        ({"templates": CHECKED}, "must be given, and differ"),
        ({"max_text_loss": -1.0}, "max_text_loss must be at least 0"),
        ({"costs": (0.5, 0.5)}, "costs must differ, got 0.5, 0.5"),
        ({"asked": 0}, "asked must be at least 1, got 0"),
        ({"at_once": 0}, "at_once must be at least 1, got 0"),
        ({"band": 1.0}, "band must be at least 0 and below 1"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
    ],
)
def test_settings_that_cannot_be(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SETTINGS, **change)


def test_costs_follow_what_the_policy_that_is_kept_may_cost():
    assert Settings().costs == (0.02, 0.009, 0.006, 0.004)
    assert Settings(max_text_loss=0.1).costs == (0.2, 0.09, 0.06, 0.04)
    assert Settings(max_text_loss=0).costs == (0,)


def test_the_tie_brings_the_growth_of_the_loss_to_what_is_allowed():
    tie, growths = Tie(0.01), []
    for _ in range(600):
        growths.append(0.1 / tie.value)  # what a fit that it holds back would cost
        tie.heed(growths[-1])
    assert growths[0] > 0.012
    assert growths[-1] == pytest.approx(0.01, rel=0.02)


def test_the_tie_heeds_texts_of_the_full_length_alone(model, monkeypatch):
    heeded, lengths = [], []
    monkeypatch.setattr(Tie, "heed", lambda _, growth: heeded.append(growth))

    def step(_, batch, *__):
        lengths.append(len(batch.texts[0]))
        return float(lengths[-1])

    monkeypatch.setattr(Fitting, "step", step)
    settings = dataclasses.replace(SETTINGS, costs=(4.0,), steps=4, heads=(), check_every=8)
    calibrate(model, letters(), settings, text=TEXT)
    assert len(lengths) == 8
    assert heeded == [length for length in lengths if length == SETTINGS.length]
    assert 4 <= len(heeded) < 8


def test_a_step_tells_how_much_the_loss_of_its_texts_has_grown(model, examples):
    fitting, batch = fitting_of(model, examples), examples.batch(1)
    assert fitting.step(batch, 1.0) == pytest.approx(0.0, abs=1e-5)
    with torch.no_grad():
        fitting.numbers["offset"] += 2.0
    texts = torch.tensor(batch.texts)
    with torch.no_grad(), sharpen(model, fitting.policy()):
        sharpened = text_losses(model, texts).mean()
    expected = float(sharpened / text_losses(model, texts).mean()) - 1
    assert abs(expected) > 1e-4
    assert fitting.step(batch, 1.0) == pytest.approx(expected, rel=0.05)


def test_several_texts_each_keep_an_eighth_to_look_at():
    examples = Examples(letters(), SETTINGS, [TEXT, TEXT.upper()])
    assert examples.checked_text().count("F") == examples.checked_text().count("f") > 0
    assert len(examples.fitted_texts()) == SETTINGS.check_texts


def test_what_does_not_fit(model):
    with pytest.raises(ValueError, match="text has 76 tokens, and 2,560 are the least"):
        Examples(letters(), SETTINGS, TEXT[:76])
    longer = dataclasses.replace(SETTINGS, length=600)
    with pytest.raises(ValueError, match="context of 512 tokens, got 600"):
        calibrate(model, letters(), longer, text=TEXT, folder=Path("unused"))
