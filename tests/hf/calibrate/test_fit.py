"""The numbers of every head: what makes them better, and what stays as it was."""

import dataclasses

import pytest
import torch
from tiny_fit import SETTINGS, fitting_of
from tiny_models import tiny

from sharpmax import LogLinear, PerHead
from sharpmax.hf import sharpen
from sharpmax.hf.calibrate import head_changes
from sharpmax.hf.calibrate.fit import Fitting
from sharpmax.hf.evaluate import text_losses


def loss_of_answers(fitting, batch) -> float:
    with torch.no_grad(), sharpen(fitting.model, fitting.policy()):
        return float(fitting._loss(batch, batch.prompts, [], None, 0.0)[0])


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
    assert len(fitting.numbers) == (2 + 2 * entropy) * (1 + sink) + sink
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
        with sharpen(model, fitting._policy_in_fit(fitting._masked())):
            return fitting._loss(batch, batch.prompts, batch.texts, original, 2.0)[0]

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


def room_for(monkeypatch, sequences):
    """Let a device have room for so many sequences at once, of as many as there are by default."""
    loss = Fitting._loss

    def loss_with_room(self, batch, groups, texts, *others):
        if len(groups) + len(texts) > sequences:
            raise torch.OutOfMemoryError
        return loss(self, batch, groups, texts, *others)

    monkeypatch.setattr(Fitting, "_loss", loss_with_room)


def test_a_step_that_has_no_room_is_taken_in_parts(model, examples, monkeypatch):
    results = []
    for sequences in (5, 2):
        room_for(monkeypatch, sequences)
        fitting = fitting_of(model, examples)
        fitting._fit_at_once = 5
        fitting.step(examples.batch(1), 3.0)
        results.append({name: value.grad.clone() for name, value in fitting.numbers.items()})
    assert fitting._fit_at_once == 2
    for name, gradient in results[0].items():
        torch.testing.assert_close(results[1][name], gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("at_once", "room", "reason"),
    [
        (3, 2, "3 of its sequences have none: set a smaller at_once, or none"),
        (None, 0, "1 of its sequences have none: set checkpointing"),
    ],
)
def test_where_there_is_no_room_it_is_said(model, examples, monkeypatch, at_once, room, reason):
    room_for(monkeypatch, room)
    fitting = fitting_of(model, examples, dataclasses.replace(SETTINGS, at_once=at_once))
    with pytest.raises(ValueError, match=reason):
        fitting.step(examples.batch(1), 3.0)


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


def test_what_the_heads_are_worth_adds_up_to_what_the_loss_has_gained(examples):
    model = tiny("llama", max_position_embeddings=512).double()
    fitting = fitting_of(model, examples, dataclasses.replace(SETTINGS, entropy=False))
    batch = examples.batch(1)
    plain = loss_of_answers(fitting, batch)
    for _ in range(12):
        fitting.step(batch, tie=0.0)
    numbers = {name: value.detach().clone() for name, value in fitting.numbers.items()}
    worth = fitting.worth([batch] * 16, tie=0.0)
    assert float(worth.sum()) == pytest.approx(plain - loss_of_answers(fitting, batch), rel=0.02)
    assert all(torch.equal(value, numbers[name]) for name, value in fitting.numbers.items())


def test_only_some_heads_stay_changed(model, examples):
    fitting = fitting_of(model, examples)
    for step in range(3):
        fitting.step(examples.batch(step), 1.0)
    worth = fitting.worth([examples.batch(step) for step in range(3)], 1.0)
    best = worth.flatten().argmax()
    fitting.keep_heads(2, worth)
    fitting.step(examples.batch(3), 1.0)
    changed = fitting.changes().flatten() > 0
    assert changed.sum() == 2
    assert changed[best]
    changes = head_changes(fitting.policy(), SETTINGS.length)
    numbers = [dataclasses.astuple(change)[2:] for change in changes]
    assert sum(any(of_head) for of_head in numbers) == 2


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


def test_a_policy_that_a_fit_cannot_go_on_from(model, examples):
    fitting = fitting_of(model, examples, dataclasses.replace(SETTINGS, sink=False, entropy=False))
    ones, base = [[1.0] * 4] * 2, LogLinear(SETTINGS.reference_length)
    apart = LogLinear(SETTINGS.reference_length, sink_apart=True)
    for policy, message in (
        (base, "that calibrate has made, got LogLinear"),
        (PerHead(base, {"offset": [1.0] * 4}), r"layers and heads, \(2, 4\), got \(4,\)"),
        (PerHead(base, {"offset": [[1.0] * 4]}), r"layers and heads, \(2, 4\), got \(1, 4\)"),
        (PerHead(LogLinear(64), {"offset": ones}), "it has reference_length 64, not 32"),
        (PerHead(LogLinear(32, 0.5), {"by_length": ones}), "it has offset 0.5, not 0"),
        (PerHead(base, {"drift": ones, "above": ones}), "above, which is not fitted here"),
        (PerHead(apart, {"sink": ones}), "it has sink_apart True, not False"),
    ):
        with pytest.raises(ValueError, match=message):
            fitting.numbers_of(policy)


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
