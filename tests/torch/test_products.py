"""Attention and its statistics in training by large products, on a CPU with fast bfloat16."""

import pytest
import torch
from attention_cases import (
    Case,
    assert_statistics_fit,
    assert_tempered_fits,
    causal,
    poison_fresh_memory,
)

from sharpmax.policies import LogLength
from sharpmax.torch import attention, row_statistics
from sharpmax.torch.row_statistics import chosen
from sharpmax.torch.scores import Scores
from sharpmax.torch.tempered import attend, products, sdpa

SETTINGS = {"is_causal": True, "mask": None, "window": None, "softcap": None, "scale": None}
LONG = {"queries": 100, "keys": 100}
CASES = {
    "causal": Case(**LONG, settings=causal),
    "all keys, grouped": Case(batch=2, heads=6, queries=70, keys=90),
    "one key head": Case(heads=3, key_heads=1, **LONG, settings=causal),
    "more keys": Case(queries=70, keys=100, settings=causal),
    "window": Case(**LONG, settings={"window": 9, **causal}),
    "window both ways": Case(**LONG, settings={"window": 9}),
    "mask": Case(batch=2, heads=4, mask=0.6, **LONG),
    "padding": Case(batch=2, mask=0.6, padding=True, queries=70, keys=100),
    "another scale": Case(**LONG, settings={"scale": 0.3, **causal}),
    "odd widths": Case(width=21, value_width=5, **LONG, settings=causal),
}


@pytest.fixture(autouse=True)
def _fast_and_poisoned(monkeypatch):
    monkeypatch.setattr("sharpmax.torch.products.multiplies_fast", lambda: True)
    poison_fresh_memory(monkeypatch)


def tensors(batch=1):
    shapes = [(batch, heads, 100, 16) for heads in (4, 2, 2)]
    return [torch.randn(shape).bfloat16().requires_grad_() for shape in shapes]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_as_near_to_float64_as_the_materialised_form(case, monkeypatch):
    monkeypatch.setattr("sharpmax.torch.scores.CHUNK_ELEMENTS", 15_000)  # several chunks
    assert_tempered_fits(case, torch.bfloat16, "cpu", "products")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_statistics_as_near_to_float64_as_those_of_the_materialised_form(case, monkeypatch):
    monkeypatch.setattr("sharpmax.torch.scores.CHUNK_ELEMENTS", 15_000)  # several chunks
    assert_statistics_fit(case, torch.bfloat16, "cpu", "products")


def test_the_gradient_by_all_statistics_is_the_sum_of_those_by_each():
    query, key, _ = tensors()
    rows = row_statistics(query, key, is_causal=True, implementation="products")
    by_each = [
        torch.autograd.grad(statistic.sum(), (query, key), retain_graph=True)
        for statistic in (rows.lse, rows.entropy)
    ]
    together = torch.autograd.grad((rows.lse + rows.entropy).sum(), (query, key))
    for whole, *parts in zip(together, *by_each, strict=True):
        torch.testing.assert_close(whole, sum(parts), atol=0.05, rtol=0.05)


def test_statistics_by_products_in_training_alone():
    query, key, _ = tensors()
    scores = Scores.of(query, key, **SETTINGS)
    assert chosen(scores) == "products"
    assert chosen(scores, reads=frozenset({"max"})) == "chunked"  # whose maximum has a gradient
    with torch.no_grad():
        assert chosen(scores) == "flash"


def test_other_strides_and_a_beta_for_all():
    query, key, value = (x.detach().mT.contiguous().mT.requires_grad_() for x in tensors())
    scores = Scores.of(query, key, **SETTINGS)
    found, wanted = (way.attend(scores, value, 1.5, None) for way in (products, sdpa))
    torch.testing.assert_close(found, wanted, atol=0.05, rtol=0.05)
    for ours, theirs in zip(
        *(torch.autograd.grad(out.sum(), (query, key, value)) for out in (found, wanted)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, atol=0.1, rtol=0.1)


def test_a_gradient_by_beta_alone():
    query, key, value = (x.detach() for x in tensors())
    beta = torch.rand(1, 4, 100).add(0.5).requires_grad_()
    scores = Scores.of(query, key, **SETTINGS)
    assert products.refusal(scores, value, beta, None) is None
    gradients = [
        torch.autograd.grad(way.attend(scores, value, beta, None).float().square().sum(), beta)[0]
        for way in (products, sdpa)
    ]
    assert (gradients[0] - gradients[1]).norm() < 0.05 * gradients[1].norm()


def test_in_training_alone(monkeypatch):
    query, key, value = tensors()
    scores, taken = Scores.of(query, key, **SETTINGS), []
    for way in (products, sdpa):
        real, told = way.attend, way.__name__.rpartition(".")[2]
        monkeypatch.setattr(
            way, "attend", lambda *given, told=told, real=real: taken.append(told) or real(*given)
        )
    attend(scores, value, 1.0)
    with torch.no_grad():
        attend(scores, value, 1.0)
    assert taken == ["products", "sdpa"]


def test_what_is_left_to_others(monkeypatch):
    query, key, value = tensors()

    def refused(query=query, key=key, value=value, **settings):
        return products.refusal(Scores.of(query, key, **SETTINGS | settings), value, 1.0, None)

    assert refused() is None
    assert "bfloat16" in refused(query.float(), key.float(), value.float())
    assert "64 queries" in refused(query[:, :, :9], key[:, :, :9], value[:, :, :9])
    assert "64 queries" in refused(*tensors(batch=200))  # which leaves few to a chunk
    assert "softcap" in refused(softcap=5.0)
    hidden = torch.ones(100, 100, dtype=torch.bool)
    hidden[3] = False
    assert "key for every query" in refused(is_causal=False, mask=hidden)
    assert "key for every query" in refused(key=key[:, :, :80], value=value[:, :, :80])
    monkeypatch.setattr("sharpmax.torch.products.multiplies_fast", lambda: False)
    assert "CPU" in refused()


def test_no_batch():
    query, key, value = tensors(batch=0)
    out = products.attend(Scores.of(query, key, **SETTINGS), value, 1.0, None)
    assert out.shape == (0, 4, 100, 16)
    assert all(x.numel() == 0 for x in torch.autograd.grad(out.sum(), (query, key, value)))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiler_meets_none_of_it():
    policy = LogLength(4, 0.3)
    compiled = torch.compile(
        lambda *given: attention(*given, policy=policy, is_causal=True),
        fullgraph=True,
        backend="aot_eager",
    )
    given = tensors()
    torch.testing.assert_close(
        compiled(*given), attention(*given, policy=policy, is_causal=True), atol=0.05, rtol=0.05
    )
