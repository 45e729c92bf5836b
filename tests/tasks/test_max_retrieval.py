"""Max retrieval: the networks, their training and its interruption, evaluation, fitted policies."""

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import gelu

from sharpmax import EntropyCap, Fixed, LogLength, LogLinear, Polynomial
from sharpmax.tasks.max_retrieval import PRESETS, Study, fit, published, read_toml, settings_from
from sharpmax.tasks.max_retrieval import evaluate as evaluation
from sharpmax.tasks.max_retrieval.data import CLASSES, Sets, draw
from sharpmax.tasks.max_retrieval.evaluate import (
    ARGMAX,
    MEASURES,
    blocks,
    drawn_block,
    evaluate_block,
    most_attended,
    scored,
)
from sharpmax.tasks.max_retrieval.networks import WIDTH, initial_weights
from sharpmax.tasks.max_retrieval.study import compared, policy_named
from sharpmax.tasks.max_retrieval.train import PLAIN, Training, clipped

CPU = torch.device("cpu")
SMALL = settings_from(
    "quick", {"seeds": 2, "steps": 300, "batch": 16, "sizes": [16, 64], "sets": 24}
)
POLICIES = {"softmax": Fixed(1.0), "log length": LogLength(16, 0.5), "cap": EntropyCap(0.5)}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Batches this small are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def trained(until: int = 300, device: torch.device = CPU, **changes) -> Training:
    settings = settings_from("quick", {"seeds": 2, "batch": 32, "steps": 300} | changes)
    training = Training(settings, policy_named(settings.training_policy, settings), device)
    training.run(until)
    return training


def test_a_policy_that_sets_the_sink_apart_is_refused(tmp_path):
    LogLinear(16, sink_apart=True, sink=1.0).save(tmp_path / "apart.json")
    with pytest.raises(ValueError, match="a set of items has no first"):
        policy_named(str(tmp_path / "apart.json"), SMALL)


def test_the_target_is_the_class_of_the_highest_priority():
    sets = draw((3, 5), 7, generator())
    assert sets.items.shape == (3, 5, 7, 1 + CLASSES)
    largest = sets.items[..., 0].argmax(-1)
    assert torch.equal(sets.largest, largest)
    kinds = sets.items[..., 1:].argmax(-1)
    assert torch.equal(sets.target, kinds.gather(-1, largest[..., None])[..., 0])
    assert (sets.items[..., 1:].sum(-1) == 1).all()


def answers_by_definition(weights, sets, attend):
    """One seed's answers with a key, a value and a logit for every item, as in the paper."""

    def layer(name, x):
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    x = gelu(layer("item.2", gelu(layer("item.1", sets.items))))
    y = gelu(layer("query.2", gelu(layer("query.1", sets.query))))
    q = y @ weights["attention.q.weight"]
    k, v = (x @ weights[f"attention.{name}.weight"] for name in "kv")
    logits = (k @ q[..., None])[..., 0] / math.sqrt(WIDTH)
    attended = (attend(logits)[..., None, :] @ v)[..., 0, :]
    return logits, layer("head.2", gelu(layer("head.1", attended))).argmax(-1)


def test_the_networks_are_the_papers():
    weights = initial_weights([3, 4])
    sets = draw((2, 40), 9, generator())
    known = scored(weights, sets)
    correct = known.correct(known.attended(torch.softmax(known.logits, -1)))
    for seed in range(2):
        network = {name: weight[seed] for name, weight in weights.items()}
        own = Sets(*(tensor[seed] for tensor in vars(sets).values()))
        logits, answers = answers_by_definition(network, own, lambda x: torch.softmax(x, -1))
        torch.testing.assert_close(known.logits[seed], logits)
        assert torch.equal(correct[seed], answers == own.target)


def test_a_seeds_network_does_not_depend_on_the_others():
    alone, together = initial_weights([5]), initial_weights([4, 5])
    for name, weight in alone.items():
        assert torch.equal(weight[0], together[name][1])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"schedule": "cosine", "gumbel": 1.0, "average": 0.9, "l2": 0.0, "clip": 1.0},
        {"ssmax": True, "training_policy": "paper"},
    ],
    ids=["paper", "recipe", "ssmax"],
)
def test_every_recipe_learns(changes):
    record = trained(**changes).record
    losses = {step: loss for step, seed, loss, _ in record if seed == 0}
    assert losses[300] < losses[100] / 1.5


def test_ssmax_at_the_trained_length_starts_as_plain():
    sets = draw((1, 4), 16, generator())
    plain = scored(initial_weights([0]), sets).logits
    torch.testing.assert_close(scored(initial_weights([0], ssmax=True), sets).logits, plain)


DEVICES = [CPU, pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_a_training_goes_on_from_its_state(device):
    whole = trained(200, device, steps=200, average=0.5, gumbel=0.5)
    begun = trained(100, device, steps=200, average=0.5, gumbel=0.5)
    resumed = Training(begun.settings, PLAIN, device)
    resumed.resume({name: tensor.clone() for name, tensor in begun.state().items()})
    resumed.run(200)
    for name, tensor in whole.state().items():
        assert torch.equal(tensor, resumed.state()[name]), name


RUN = """
import sys
from pathlib import Path
import torch
from sharpmax.tasks.max_retrieval import Study, evaluate, settings_from
evaluate.ITEMS_AT_ONCE["cpu"] = 512  # several blocks a size
small = {"seeds": 2, "steps": 600, "batch": 16, "sizes": [16, 64], "sets": 24}
settings = settings_from("quick", small)
torch.set_num_threads(1)
Study.open(Path(sys.argv[1]), settings, torch.device("cpu"), save_every=0.0).run()
"""
RESULTS = ("weights.safetensors", "training.csv", "evaluation.csv", "comparison.csv", "fit.csv")


def test_a_run_killed_while_training_and_again_while_asking_ends_like_an_unbroken_one(tmp_path):
    command = [sys.executable, "-c", RUN]
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    for file in ("checkpoint.safetensors", "evaluation.json"):
        process = subprocess.Popen([*command, broken])
        while process.poll() is None and not (broken / file).exists():
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (broken / "comparison.csv").exists()
    for folder in (broken, unbroken):
        subprocess.run([*command, folder], check=True)
    for name in RESULTS:
        assert (broken / name).read_bytes() == (unbroken / name).read_bytes(), name
    leftovers = [path.name for path in broken.iterdir() if path.name.startswith((".", "check"))]
    assert not [name for name in leftovers if not name.endswith(".part")]


def test_a_finished_run_is_not_done_again(tmp_path):
    Study.open(tmp_path / "run", SMALL, CPU).run()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()}
    Study.open(tmp_path / "run", SMALL, CPU).run()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()} == before


@pytest.fixture(scope="module")
def weights():
    return trained().result()


def test_pieces_do_not_change_the_result(weights, monkeypatch):
    sets = drawn_block(0, 100, 0, (2, 6), CPU)
    whole = evaluate_block(weights, sets, POLICIES)
    attended = most_attended(weights, sets, POLICIES)
    monkeypatch.setitem(evaluation.ITEMS_AT_ONCE, "cpu", 150)
    for name, sums in evaluate_block(weights, sets, POLICIES).items():
        torch.testing.assert_close(sums, whole[name])
    again = most_attended(weights, sets, POLICIES)
    assert [row["weight"] for row in again] == pytest.approx([row["weight"] for row in attended])


@given(size=st.integers(2, 3000), sets=st.integers(1, 3000), seeds=st.integers(1, 10))
def test_blocks_hold_all_sets_and_fit_in_memory(size, sets, seeds):
    counts = blocks(size, sets, seeds, CPU)
    assert sum(counts) == sets
    assert min(counts) >= 1
    assert max(counts) * size * seeds <= evaluation.ITEMS_AT_ONCE["cpu"] or max(counts) == 1


def test_what_is_measured(weights):
    sets = drawn_block(0, 64, 0, (2, 30), CPU)
    known = scored(weights, sets)
    measured = dict(zip(MEASURES, known.measured(Fixed(2.0)), strict=True))
    attention = torch.softmax(2 * known.logits, -1)
    entropy = -(attention * attention.log()).nan_to_num().sum(-1)
    torch.testing.assert_close(measured["entropy"], entropy, atol=1e-5, rtol=1e-5)
    of_largest = attention.gather(-1, sets.largest[..., None])[..., 0]
    torch.testing.assert_close(measured["weight"], of_largest)
    assert (measured["weight"] <= measured["bound"]).all()
    assert (measured["beta"] == 2).all()
    spread = known.logits.amax(-1) - known.logits.amin(-1)
    assert torch.equal(measured["spread"], spread)


def test_endless_beta_is_argmax(weights):
    sets = drawn_block(0, 64, 0, (2, 50), CPU)
    known = scored(weights, sets)
    sharp, hard = known.measured(Fixed(1e6)), known.measured_at_argmax()
    for measure in ("accuracy", "weight"):
        i = MEASURES.index(measure)
        torch.testing.assert_close(sharp[i], hard[i], atol=1e-3, rtol=0)
    assert ARGMAX in evaluate_block(weights, sets, {})


def test_attention_is_shown_by_key_norm(weights):
    network = {name: weight[:1] for name, weight in weights.items()}
    sets = drawn_block(0, 20, 0, (1, 3), CPU)
    rows = most_attended(network, sets, {"softmax": Fixed(1.0)}, ranks=20)
    for i in range(3):
        shown = [row for row in rows if row["set"] == i]
        assert [row["rank"] for row in shown] == list(range(1, 21))
        assert sum(row["weight"] for row in shown) == pytest.approx(1)
        assert sum(row["is_maximum"] for row in shown) == 1


def test_the_best_beta_gives_the_item_the_most_weight(weights):
    sets = drawn_block(0, 64, 0, (2, 60), CPU)
    points = fit.best_betas(weights, sets)
    assert points
    known = scored(weights, sets)
    item = known.of_largest(known.logits)
    betas = torch.linspace(0.01, fit.LARGEST_BETA, 4000, dtype=torch.float64)
    plain = torch.softmax(known.logits, -1)
    wrong = ~known.correct(known.attended(plain)) & (item < known.logits.amax(-1))
    entropy = -(plain * plain.log()).nan_to_num().sum(-1)
    expected = []
    for logits, own, h in zip(known.logits[wrong], item[wrong], entropy[wrong], strict=True):
        lse = torch.logsumexp(betas[:, None] * logits.double(), -1)
        best = float(betas[(betas * own.double() - lse).argmax()])
        if best < fit.LARGEST_BETA - 0.01:
            expected.append((float(h), best))
    found = [(h, beta) for h, beta in points if beta < fit.LARGEST_BETA - 0.01]
    np.testing.assert_allclose(found, expected, atol=0.01)


def test_a_polynomial_is_found_again():
    truth = Polynomial((-0.037, 0.481, -2.3, 4.917, -1.791))
    entropies = list(np.linspace(0.9, 5.9, 50))
    points = list(zip(entropies, fit.curve(truth, entropies), strict=True))
    fitted = fit.fit_polynomial(points)
    np.testing.assert_allclose(fitted.coefficients, truth.coefficients, atol=1e-6)
    assert fitted.threshold == 0.5


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0.1, 16)), min_size=40, max_size=80))
def test_a_monotone_fit_never_falls(points):
    policy = fit.fit_monotone(points)
    betas = fit.curve(policy, list(np.linspace(-1, 12, 100)))
    assert (np.diff(betas) >= -1e-9).all()
    assert min(betas) >= 1 - 1e-9
    assert betas[-1] == pytest.approx(policy.betas[-1])


def test_a_monotone_fit_to_rows_that_are_all_sharp():
    points = [(10.0**-i, 1.0) for i in range(40)]
    policy = fit.fit_monotone(points)
    assert np.isfinite(fit.curve(policy, [0.0, 1e-41, 1e-3, 1.0])).all()


def test_gradients_are_clipped_network_by_network():
    gradients = (torch.tensor([[3.0, 0.0], [0.3, 0.0]]), torch.tensor([[[4.0]], [[0.4]]]))
    first, second = clipped(gradients, 1.0)
    torch.testing.assert_close(first, torch.tensor([[0.6, 0.0], [0.3, 0.0]]))
    torch.testing.assert_close(second, torch.tensor([[[0.8]], [[0.4]]]))


def test_a_fitted_policy_is_a_file_that_others_take(tmp_path):
    Study.open(tmp_path / "first", replace(SMALL, sizes=(16, 512), sets=64), CPU).run()
    files = [str(tmp_path / "first" / f"{name}.json") for name in ("fitted", "monotone")]
    settings = settings_from("quick", {"steps": 100, "sizes": [16, 32], "sets": 8, "seeds": 1})
    study = Study.open(tmp_path / "second", replace(settings, policies=tuple(files)), CPU)
    study.run()
    tested = {row["policy"] for row in study.folder.read_table("comparison.csv")}
    assert {*files, "softmax", "paper", "held", "log length", "entropy cap", ARGMAX} <= tested


def test_a_paired_t_test_sees_what_differs_in_every_seed():
    rows = [
        {"policy": policy, "size": 16, "accuracy": 0.5 + 0.1 * seed + gain + 0.001 * seed}
        for policy, gain in (("softmax", 0.0), ("paper", 0.02))
        for seed in range(4)
    ]
    rows[-1]["accuracy"] += 0.001
    plain, paper = compared(rows)
    assert plain["difference"] == 0
    assert plain["p_value"] is None
    assert paper["difference"] == pytest.approx(0.02, abs=1e-3)
    assert paper["p_value"] < 1e-3
    assert paper["low"] < paper["accuracy"] < paper["high"]


@pytest.mark.parametrize("preset", PRESETS)
def test_settings_pass_through_toml(preset, tmp_path):
    settings = PRESETS[preset]
    file = tmp_path / "settings.toml"
    file.write_text(settings.to_toml())
    assert settings_from("quick", read_toml(file)) == settings


def test_the_paper_preset_is_the_papers():
    paper = PRESETS["paper"]
    assert (paper.seeds, paper.steps, paper.batch) == (10, 100_000, 128)
    assert (paper.least_items, paper.most_items) == (5, 16)
    assert paper.sizes == published.SIZES
    assert paper.sets >= 1024


MEMORY = """
import torch
from pathlib import Path
from sharpmax import Fixed, EntropyCap, PAPER
from sharpmax.tasks.max_retrieval.evaluate import blocks, drawn_block, evaluate_block
from sharpmax.tasks.max_retrieval.networks import initial_weights
weights, cpu = initial_weights(range(3)), torch.device("cpu")
policies = {"softmax": Fixed(1.0), "paper": PAPER, "cap": EntropyCap(0.5)}
for size in (16_384, 262_144):
    count = blocks(size, 4, 3, cpu)[0]
    evaluate_block(weights, drawn_block(0, size, 0, (3, count), cpu), policies)
    # Not getrusage, whose peak includes that of the process which this one was forked from.
    peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    print(size, int(peak) * 1024)
"""


def test_memory_is_bounded_at_any_size():
    output = subprocess.run(
        [sys.executable, "-c", MEMORY], check=True, capture_output=True, text=True
    ).stdout
    peaks = dict(map(int, line.split()) for line in output.splitlines())
    assert peaks[16_384] < 1e9
    assert peaks[262_144] < 1.5e9
