"""What is told of heads agrees with their weights, at every length and for every text."""

import csv
import math
from dataclasses import asdict, astuple

import pytest
import torch
from tiny_models import DECODERS, tiny
from torch import Tensor

from sharpmax import HELD, PAPER, EntropyCap, Fixed, LogLinear, PerHead
from sharpmax.hf import Diagnosis, Head, diagnose
from sharpmax.hf.heads import MEASURES, NEAR
from sharpmax.hf.kinds import kinds
from sharpmax.hf.sharpen import sharpen
from sharpmax.hf.texts import reading

LENGTHS = [16, 32]


class Letters:
    """A tokenizer of one letter a token."""

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [3 + ord(letter) % 90 for letter in text]}


TEXT = "".join(chr(33 + i * i % 77) for i in range(200))


APART = LogLinear(8, 0.2, 0.1, sink_apart=True, sink=-1.0, sink_by_length=0.8)


@torch.no_grad()
def by_weights(model, policy) -> dict[tuple[int, int, int], dict[str, float]]:
    """Return measures from the weights themselves, by length, layer and head."""
    ids = torch.tensor([Letters()(TEXT)["input_ids"][: LENGTHS[-1]]])
    with sharpen(model, policy):
        attentions = model(ids, output_attentions=True, use_cache=False).attentions
    found = {}
    for length in LENGTHS:
        rows = slice(length // 2, length)
        for layer, weights in enumerate(attentions):
            for head in range(weights.shape[1]):
                w = weights[0, head, rows]
                position = torch.arange(length // 2, length)[:, None]
                near = w * (position - torch.arange(w.shape[1]) < NEAR)
                found[length, layer, head] = {
                    "entropy": -torch.special.xlogy(w, w).sum(-1).mean().item(),
                    "largest": w.amax(-1).mean().item(),
                    "first": w[:, 0].mean().item(),
                    "near": near.sum(-1).mean().item(),
                }
    return found


@pytest.mark.parametrize("policy", [Fixed(1.0), PAPER, EntropyCap(1.0), APART], ids=repr)
@pytest.mark.parametrize("name", [name for name in DECODERS if name != "gpt_oss"])
def test_measures_are_those_of_the_weights(name, policy):
    model = tiny(name)
    expected = by_weights(model, policy)
    found = diagnose(model, Letters(), LENGTHS, TEXT, policy=policy)
    assert len(found.heads) == len(expected) == 2 * 2 * 4
    for head in found.heads:
        wanted = expected[head.length, head.layer, head.head]
        told = {name: getattr(head, name) for name in wanted}
        assert told == pytest.approx(wanted, abs=1e-4), (head.length, head.layer, head.head)
        assert head.rows == head.length // 2
        assert head.half_length == pytest.approx(2 * math.exp(head.beta * head.spread))
    assert model.config._attn_implementation == "eager"


def test_a_learned_sink_counts_as_the_first_token():
    heads = diagnose(tiny("gpt_oss"), Letters(), LENGTHS, TEXT).heads
    assert all(0 < head.first < 1 and head.largest <= 1 for head in heads)


def test_the_spread_beside_a_sink_apart_is_that_of_the_others():
    def of(policy):
        return diagnose(tiny("llama"), Letters(), [16], TEXT, policy=policy).heads

    for plain, apart in zip(of(HELD), of(APART), strict=True):
        assert 0 < apart.spread <= plain.spread
        assert apart.half_length == pytest.approx(2 * math.exp(apart.beta * apart.spread))


@pytest.mark.parametrize("policy", [HELD, APART, LogLinear(8, sink_apart=True, sink=6.0)], ids=repr)
def test_the_bound_is_above_the_largest_weight(policy):
    for head in diagnose(tiny("llama"), Letters(), LENGTHS, TEXT, policy=policy).heads:
        assert head.largest <= head.bound <= 1


def test_sampled_rows_are_the_last(monkeypatch):
    from sharpmax.hf import heads

    model = tiny("llama")
    last = diagnose(model, Letters(), LENGTHS, TEXT, rows=3)
    monkeypatch.setitem(heads.CHUNK_ELEMENTS, "cpu", 1)  # one row at a time
    again = diagnose(model, Letters(), LENGTHS, TEXT, rows=3)
    assert {head.rows for head in last.heads} == {3}
    for a, b in zip(last.heads, again.heads, strict=True):
        assert astuple(a)[1:] == pytest.approx(astuple(b)[1:], rel=1e-4)


def test_lengths_do_not_depend_on_what_follows():
    model = tiny("llama")
    alone = diagnose(model, Letters(), [16], TEXT).heads
    among = [head for head in diagnose(model, Letters(), LENGTHS, TEXT).heads if head.length == 16]
    for a, b in zip(alone, among, strict=True):
        assert astuple(a)[1:] == pytest.approx(astuple(b)[1:], rel=1e-3)


def test_an_encoder_reads_every_length_by_itself():
    model = tiny("bert")
    heads = diagnose(model, Letters(), LENGTHS, TEXT).heads
    assert {head.length for head in heads} == set(LENGTHS)


def test_a_policy_by_head():
    model = tiny("llama")
    policy = PerHead(Fixed(1.0), {"beta": [[1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]]})
    heads = diagnose(model, Letters(), [16], TEXT, policy=policy).heads
    assert [head.beta for head in heads] == [1.0, 2.0, 3.0, 4.0, 4.0, 3.0, 2.0, 1.0]


def test_progress_ends_where_it_should():
    told: list[tuple[int, int]] = []
    diagnose(tiny("llama"), Letters(), LENGTHS, TEXT, samples=2, tell=lambda *x: told.append(x))
    done, total = zip(*told, strict=True)
    assert list(done) == sorted(done)
    assert done[-1] == total[-1]


@pytest.mark.parametrize("text", ["max", "keys"])
def test_texts_that_end_in_a_question(smollm2, text):
    model, tokenizer, _ = smollm2
    prompts = [reading(tokenizer, text)(n, 0) for n in (64, 128)]
    assert all(0.6 * n < len(p) <= n for p, n in zip(prompts, (64, 128), strict=True))
    heads = diagnose(model, tokenizer, [64, 128], text).heads
    assert {head.rows for head in heads} == {1}
    assert len(heads) == 2 * 30 * 9


def test_the_papers_question(smollm2):
    text = smollm2.tokenizer.decode(reading(smollm2.tokenizer, "max")(80, 0))
    assert text.startswith("What is the maximum in the following sequence: ")
    assert text.endswith("? The maximum is:")


@torch.no_grad()
def test_the_entropies_of_smollm2(smollm2):
    model, tokenizer, _ = smollm2
    heads = diagnose(model, tokenizer, [64, 128]).heads
    ids = torch.tensor([reading(tokenizer, None)(128, 0)])
    model.set_attn_implementation("eager")
    attentions = model(ids, output_attentions=True, use_cache=False).attentions
    model.set_attn_implementation("sdpa")
    for head in heads:
        w: Tensor = attentions[head.layer][0, head.head, head.length // 2 : head.length]
        entropy = -torch.special.xlogy(w, w).sum(-1).mean().item()
        assert head.entropy == pytest.approx(entropy, abs=1e-4)


def test_kinds():
    def seen(length: int, head: int, **measures: float) -> Head:
        values = dict.fromkeys(MEASURES, 0.1) | measures
        return Head("plain", length, 0, head, 1, **values, half_length=1.0)

    longest = [
        seen(1024, 0, first=0.7),
        seen(1024, 1, near=0.6),
        seen(1024, 2, largest=0.9),
        seen(1024, 3, entropy=5.0),
        seen(1024, 4, entropy=1.2),
    ]
    shortest = [seen(64, head, entropy=1.0) for head in range(5)]
    found = kinds(Diagnosis([*shortest, *longest]))
    assert list(found.values()) == ["sink", "local", "sharp", "disperses", "steady"]


def test_tables(tmp_path):
    found = diagnose(tiny("llama"), Letters(), LENGTHS, TEXT)
    found.write_csv(tmp_path / "heads.csv")
    rows = list(csv.DictReader((tmp_path / "heads.csv").read_text().splitlines()))
    assert [float(row["entropy"]) for row in rows] == [head.entropy for head in found.heads]
    parquet = pytest.importorskip("pyarrow.parquet")
    found.write_parquet(tmp_path / "heads.parquet")
    assert parquet.read_table(tmp_path / "heads.parquet").to_pylist() == [
        asdict(head) for head in found.heads
    ]


def test_what_cannot_be_diagnosed():
    model = tiny("llama")
    with pytest.raises(ValueError, match="within the model's context of 256 tokens, got 512"):
        diagnose(model, Letters(), [512], TEXT)
    with pytest.raises(ValueError, match="text has 200 tokens, and 256 are to be read"):
        diagnose(model, Letters(), [256], TEXT)
    with pytest.raises(ValueError, match="text has 200 tokens, and 240 are to be read"):
        diagnose(model, Letters(), [120], TEXT, samples=2)
    with pytest.raises(ValueError, match="text must not be empty"):
        diagnose(model, Letters(), [16], "  ")
    with pytest.raises(ValueError, match="at least 2 tokens, got 1"):
        diagnose(model, Letters(), [1], TEXT)
    with pytest.raises(ValueError, match="rows must be at least 1, got 0"):
        diagnose(model, Letters(), [16], TEXT, rows=0)
    with pytest.raises(ValueError, match="at least one length"):
        diagnose(model, Letters(), [], TEXT)
    assert model.config._attn_implementation == "eager"
