"""A shifted sink: γ on one logit, whatever the kernel, the mask or the layout."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sharpmax
from sharpmax import Detached, LogLinear, PerHead, Policy
from sharpmax.torch import attention, row_statistics

LENGTH = 24
POLICY = LogLinear(8, 0.2, 0.3, sink=-0.7, sink_by_length=1.1)
BY_HEAD = PerHead(LogLinear(8), {"offset": [0.2, -0.1, 0.0, 0.3], "sink": [1.0, -1.0, 0.0, 0.4]})
BY_ENTROPY = LogLinear(8, 0.1, low=1.0, high=2.0, above=0.3, sink=0.5, sink_above=-0.4)


def defined(query, key, value, policy, visible, place):
    """Return softmax(β·s + γ·[sink])·value by the definition."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    logits = query @ key.mT * query.shape[-1] ** -0.5
    rows = sharpmax.RowStatistics.from_logits(logits, where=visible.expand(logits.shape))
    shift = torch.zeros_like(logits)
    place = place.expand(logits.shape[:-1])[..., None]
    gamma = torch.as_tensor(policy.sink_shift(rows)).to(logits).expand(logits.shape[:-1])[..., None]
    shift.scatter_(-1, place, gamma)
    shifted = policy(rows)[..., None] * logits + shift
    return torch.nan_to_num(shifted.masked_fill(~visible, -torch.inf).softmax(-1)) @ value


def tensors(queries=LENGTH, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (2, 4, queries, 8), (2, 2, LENGTH, 8), (2, 2, LENGTH, 8)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).mul(2).requires_grad_()
        for shape in shapes
    ]


def causal(queries, window=None):
    back = torch.arange(LENGTH - queries, LENGTH)[:, None] - torch.arange(LENGTH)
    return (back >= 0) & (back < (window or LENGTH))


@pytest.mark.parametrize("policy", [POLICY, BY_HEAD, BY_ENTROPY], ids=["all", "heads", "entropy"])
@pytest.mark.parametrize("queries", [LENGTH, 5, 1])
@pytest.mark.parametrize("window", [None, 7])
def test_attention_is_as_defined_and_so_is_its_gradient(policy, queries, window):
    given = tensors(queries)
    place = torch.zeros(1, 1, 1, dtype=torch.long)
    found = attention(*given, policy=policy, is_causal=True, window=window)
    wanted = defined(*given, policy, causal(queries, window), place)
    torch.testing.assert_close(found, wanted)
    upstream = torch.randn(found.shape, dtype=found.dtype)
    for a, b in zip(
        torch.autograd.grad(found, given, upstream),
        torch.autograd.grad(wanted, given, upstream),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_behind_padding_the_sink_is_the_first_key_that_is_none():
    given, padding = tensors(), torch.tensor([0, 9])
    mask = (torch.arange(LENGTH) >= padding[:, None])[:, None, None]
    found = attention(*given, policy=POLICY, is_causal=True, mask=mask)
    wanted = defined(*given, POLICY, mask & causal(LENGTH), padding[:, None, None])
    torch.testing.assert_close(found, wanted)
    assert bool((found[1, :, :9] == 0).all())


def test_the_gradient_reaches_the_policy():
    query, key, value = tensors()
    sink = torch.tensor([0.3, -0.2, 0.1, 0.0], dtype=torch.float64, requires_grad=True)
    policy = PerHead(LogLinear(8), {"sink": sink})
    (gradient,) = torch.autograd.grad(
        attention(query, key, value, policy=policy, is_causal=True).square().sum(), sink
    )
    with torch.no_grad():
        ends = [
            attention(
                query,
                key,
                value,
                policy=PerHead(LogLinear(8), {"sink": sink + sign * 1e-5 * torch.eye(4)[1]}),
                is_causal=True,
            )
            .square()
            .sum()
            for sign in (1, -1)
        ]
    assert float(gradient[1]) == pytest.approx(float(ends[0] - ends[1]) / 2e-5, rel=1e-4)


def test_rows_may_have_sinks_of_their_own():
    given = tensors()
    start = torch.arange(LENGTH) // 6 * 6  # sequences of six, packed behind each other
    mask = (torch.arange(LENGTH) >= start[:, None])[None, None]
    found = attention(*given, policy=POLICY, is_causal=True, mask=mask)
    wanted = defined(*given, POLICY, mask & causal(LENGTH), start[None, None])
    torch.testing.assert_close(found, wanted)


def test_a_softcap_comes_before_both():
    query, key, value = tensors()
    found = attention(query, key, value, policy=LogLinear(64, 0.3, sink=-1.0), softcap=3.0)
    logits = query @ key.repeat_interleave(2, dim=1).mT * 8**-0.5
    logits = np.exp(0.3) * 3 * torch.tanh(logits / 3)
    logits = logits - torch.eye(LENGTH)[0]
    wanted = logits.softmax(-1) @ value.repeat_interleave(2, dim=1)
    torch.testing.assert_close(found, wanted)


def test_without_a_shift_nothing_changes():
    given = tensors()
    plain = attention(*given, policy=LogLinear(8, 0.2), is_causal=True)
    policy = PerHead(LogLinear(8, 0.2), {"sink": torch.zeros(4)})
    assert policy.shifts_sink  # as it may, in training
    assert not PerHead(LogLinear(8, 0.2), {"sink": [0.0] * 4}).shifts_sink
    assert PerHead(LogLinear(8, 0.2), {"sink": [0.0, 0.0, 1.0, 0.0]}).shifts_sink
    torch.testing.assert_close(attention(*given, policy=policy, is_causal=True), plain)


def test_statistics_are_those_of_plain_logits():
    query, key, value = tensors()
    _, found = attention(query, key, value, policy=POLICY, is_causal=True, return_statistics=True)
    wanted = row_statistics(query, key, is_causal=True)
    torch.testing.assert_close(found.entropy, wanted.entropy)


def test_in_half_precision():
    given = [x.detach().to(torch.bfloat16) for x in tensors()]
    found = attention(*given, policy=POLICY, is_causal=True)
    wanted = attention(*(x.double() for x in given), policy=POLICY, is_causal=True)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), wanted, atol=0.05, rtol=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("policy", [POLICY, BY_HEAD, BY_ENTROPY], ids=["all", "heads", "entropy"])
@pytest.mark.parametrize("queries", [LENGTH, 5, 1])
@pytest.mark.parametrize("recorded", [False, True])
def test_on_a_gpu(policy, queries, recorded):
    given = [x.detach().float() for x in tensors(queries)]
    wanted = attention(*(x.double() for x in given), policy=policy, is_causal=True)
    moved = [x.to("cuda", torch.bfloat16).requires_grad_(recorded) for x in given]
    found = attention(*moved, policy=policy, is_causal=True)
    torch.testing.assert_close(found.double().cpu(), wanted, atol=0.08, rtol=0.05)
    if recorded:
        assert all(x.isfinite().all() for x in torch.autograd.grad(found.sum(), moved))


def test_heads_that_rest_lose_no_digits():
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, 1, 64, 16, generator=generator) for _ in "qkv")
    query, key = query.abs(), 0.1 * key
    key[:, :, 0] = 3.0  # on which nearly all weight lies
    given = [x.bfloat16() for x in (query, key, value)]
    truth = [x.double() for x in given]
    for shift in (-2.0, -4.0, -8.0):
        policy = LogLinear(64, sink=shift)
        wanted = attention(*truth, policy=policy, is_causal=True)
        found = attention(*given, policy=policy, is_causal=True).double()
        assert float((found - wanted).norm() / wanted.norm()) < 0.02, shift


def test_policies_by_head_survive_a_file_and_a_gradient_left_out(tmp_path):
    policy = Detached(BY_HEAD)
    policy.save(tmp_path)
    assert Policy.load(tmp_path) == policy
    assert policy.shifts_sink
    given = tensors()
    found = attention(*given, policy=policy, is_causal=True)
    torch.testing.assert_close(found, attention(*given, policy=BY_HEAD, is_causal=True))


def test_what_it_cannot_do():
    given = tensors()
    with pytest.raises(NotImplementedError, match="differs by head"):
        attention(*given, policy=POLICY, mask=torch.ones(1, 4, 1, LENGTH, dtype=torch.bool))


@given(st.integers(1, 6), st.floats(-3, 3), st.sampled_from([0, 1, -1]))
def test_the_softmax_of_any_array_adds_to_its_first_logit(length, shift, axis):
    logits = np.random.default_rng(length).normal(size=(length, length))
    found = sharpmax.softmax(logits, LogLinear(64, sink=shift), axis=axis)
    moved = np.moveaxis(logits.copy(), axis, -1)
    moved[..., 0] += shift
    wanted = np.moveaxis(sharpmax.softmax(moved, sharpmax.Fixed(1.0)), -1, axis)
    np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_the_softmax_takes_the_first_that_is_seen():
    logits = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    seen = torch.tensor([[True] * 5, [False, True, True, True, False], [False] * 5])
    gamma = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    policy = LogLinear(64, 0.3, sink=gamma)
    found = sharpmax.softmax(logits, policy, where=seen)
    first = torch.tensor([[1.0, 0, 0, 0, 0], [0, 1.0, 0, 0, 0], [0.0] * 5])
    shifted = (np.exp(0.3) * logits + gamma * first).masked_fill(~seen, -torch.inf)
    wanted = torch.nan_to_num(shifted[:2].softmax(-1))
    torch.testing.assert_close(found[:2], wanted)
    assert bool((found[2] == 0).all())
    for a, b in zip(
        torch.autograd.grad(found[:, 1].sum(), (logits, gamma)),
        torch.autograd.grad(wanted[:, 1].sum(), (logits, gamma)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_the_softmax_of_half_precision_hides_its_most_negative_number():
    logits = torch.tensor([[torch.finfo(torch.float16).min, 1.0, 2.0]], dtype=torch.float16)
    found = sharpmax.softmax(logits, LogLinear(64, sink=1.0))
    assert found.dtype == torch.float16
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.5, 0.5]], dtype=torch.float16))


@pytest.mark.parametrize("policy", [POLICY, BY_HEAD], ids=["all", "heads"])
def test_it_compiles_in_one_graph(policy):
    given = [x.detach().float() for x in tensors()]
    compiled = torch.compile(attention, fullgraph=True, backend="eager")
    found = compiled(*given, policy=policy, is_causal=True)
    torch.testing.assert_close(found, attention(*given, policy=policy, is_causal=True))
