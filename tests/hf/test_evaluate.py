"""Losses and retrieval, plain and sharpened, on the same texts and prompts."""

import csv
import sys

import pytest
import torch
from tiny_models import COMMON, tokens
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

from sharpmax import PAPER, Fixed
from sharpmax.hf import Plan, Score, evaluate
from sharpmax.hf.evaluate import TEXT, text_losses
from sharpmax.hf.table import write_csv
from sharpmax.hf.texts import reading

PLAN = Plan(lengths=(96,), windows=2, templates=("code",), depths=(0.0, 1.0), prompts=2)


@torch.no_grad()
def test_losses_are_those_of_the_logits(smollm2, monkeypatch):
    monkeypatch.setattr(sys.modules["sharpmax.hf.reader"], "TOKENS_AT_ONCE", 10)
    tokens = torch.tensor([reading(smollm2.tokenizer, None)(64, 0)])
    logits = smollm2.model(tokens).logits
    expected = cross_entropy(logits[0, :-1], tokens[0, 1:], reduction="none")
    losses = text_losses(smollm2.model, tokens)[0]
    torch.testing.assert_close(losses, expected, rtol=0.0, atol=1e-4)


def test_policies_meet_the_same_texts(smollm2, tmp_path):
    told: list[int] = []
    policies = {"plain": None, "one": Fixed(1.0), "paper": PAPER}
    scores = evaluate(smollm2.model, smollm2.tokenizer, policies, PLAN, told.append)
    values = {(s.case, s.task, s.depth): s.value for s in scores}
    for task, depth in ((TEXT, None), ("retrieval: code", 0.0), ("retrieval: code", 1.0)):
        assert values["one", task, depth] == pytest.approx(values["plain", task, depth], abs=1e-4)
    # The paper's polynomial in every head of a language model hurts it.
    assert values["paper", TEXT, None] > values["plain", TEXT, None]
    assert sum(told) == len(policies) * PLAN.tokens()
    assert all(s.low <= s.value <= s.high for s in scores)
    write_csv(tmp_path / "scores.csv", Score, scores)
    rows = list(csv.DictReader((tmp_path / "scores.csv").read_text().splitlines()))
    assert [row["case"] for row in rows] == [s.case for s in scores]


def test_as_many_windows_as_the_text_has(smollm2):
    text = smollm2.tokenizer.decode(reading(smollm2.tokenizer, None)(200, 0))
    plan = Plan(lengths=(64,), text=text, windows=9, prompts=0)
    (score,) = evaluate(smollm2.model, smollm2.tokenizer, {"plain": None}, plan)
    assert score.samples == 3


def test_losses_where_the_logits_are_scaled():
    config = AutoConfig.for_model("granite", **COMMON, logits_scaling=4.0)
    model = AutoModelForCausalLM.from_config(config).eval()
    ids = tokens()
    with torch.no_grad():
        expected = cross_entropy(model(ids).logits[:, :-1].mT, ids[:, 1:], reduction="none")
    torch.testing.assert_close(text_losses(model, ids), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"templates": ("nothing",)}, "templates must be among code"),
        ({"lengths": ()}, "lengths must be at least 2 tokens"),
        ({"depths": (2.0,)}, "depths must be from 0 to 1"),
        ({"prompts": -1}, "prompts must be at least 0, got -1"),
        ({"limit": 0}, "limit must be at least 1, got 0"),
    ],
)
def test_plans_that_do_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        Plan(**changes)


def test_lengths_beyond_the_context(smollm2):
    with pytest.raises(ValueError, match="within the model's context of 8,192 tokens, got 9,000"):
        evaluate(smollm2.model, smollm2.tokenizer, {"plain": None}, Plan(lengths=(9000,)))


def test_tasks_of_lm_eval(smollm2):
    pytest.importorskip("lm_eval", reason="needs sharpmax[evaluate]")
    plan = Plan(lengths=(512,), windows=0, prompts=0, tasks=("niah_single_1",), limit=2)
    (score,) = evaluate(smollm2.model, smollm2.tokenizer, {"plain": None}, plan)
    assert (score.task, score.length, score.samples) == ("niah_single_1", 512, 2)
    assert 0 <= score.value <= 1
