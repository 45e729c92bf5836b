"""A sink that stands apart: its odds, and β among all other keys, whatever the kernel or mask."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sharpmax
from sharpmax import Detached, LogLinear, PerHead, Policy
from sharpmax.torch import attention, choice, row_statistics, sink

LENGTH = 24
POLICY = LogLinear(8, 0.2, 0.3, sink_apart=True, sink=-0.7, sink_by_length=1.1, sink_log_power=0.3)
APART = LogLinear(8, sink_apart=True)
BY_HEAD = PerHead(APART, {"offset": [0.2, -0.1, 0.0, 0.3], "sink": [1.0, -1.0, 0.0, 0.4]})
BAND = {"low": 1.0, "high": 2.0, "sink_apart": True}
BY_ENTROPY = LogLinear(8, 0.1, above=0.3, sink=0.5, sink_above=-0.4, **BAND)
POLICIES = pytest.mark.parametrize(
    "policy", [POLICY, BY_HEAD, BY_ENTROPY], ids=["all", "heads", "entropy"]
)


def defined(query, key, value, policy, visible, place, softcap=None):
    """Return attention by the definition, from all logits at once."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    logits = query @ key.mT * query.shape[-1] ** -0.5
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    is_sink = torch.arange(key.shape[2]) == place.expand(logits.shape[:-1])[..., None]
    others = visible.expand(logits.shape) & ~is_sink
    rows = sharpmax.RowStatistics.from_logits(logits, where=others)
    own = (logits * is_sink).sum(-1)
    odds = policy.sink_log_odds(rows, (own - rows.lse).clamp(max=1e4))
    share = (torch.sigmoid(odds) * (is_sink & visible).any(-1))[..., None]
    sharper = (torch.as_tensor(policy(rows))[..., None] * logits).masked_fill(~others, -1e9)
    weights = sharper.softmax(-1) * others.any(-1, keepdim=True)
    return (share * is_sink + (1 - share) * weights) @ value


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


@POLICIES
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
    policy = PerHead(APART, {"sink": sink})
    (gradient,) = torch.autograd.grad(
        attention(query, key, value, policy=policy, is_causal=True).square().sum(), sink
    )
    with torch.no_grad():
        ends = [
            attention(
                query,
                key,
                value,
                policy=PerHead(APART, {"sink": sink + sign * 1e-5 * torch.eye(4)[1]}),
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


def test_a_softcap_comes_first():
    given, place = tensors(), torch.zeros(1, 1, 1, dtype=torch.long)
    found = attention(*given, policy=POLICY, softcap=3.0)
    everything = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    torch.testing.assert_close(found, defined(*given, POLICY, everything, place, softcap=3.0))


@pytest.mark.parametrize("queries", [LENGTH, LENGTH + 5, 5, 1])
@pytest.mark.parametrize("is_causal", [True, False])
def test_the_sink_keeps_its_weight_whatever_beta_is(queries, is_causal):
    query, key, value = tensors(queries)
    only_sink = torch.zeros_like(value).index_fill(2, torch.tensor([0]), 1.0)
    plain = attention(query, key, only_sink, policy=sharpmax.Fixed(1.0), is_causal=is_causal)
    for beta in (0.5, 1.7):
        policy = LogLinear(8, np.log(beta), sink_apart=True)
        found = attention(query, key, only_sink, policy=policy, is_causal=is_causal)
        torch.testing.assert_close(found, plain)


@pytest.mark.parametrize("log_power", [-2.0, 0.0, 2.0])
def test_a_single_key_has_all_the_weight(log_power):
    query, key, value = tensors()
    policy = LogLinear(64, sink_apart=True, sink=-7.5, sink_log_power=log_power)
    one = key[:, :, :1], value[:, :, :1]
    for queries, is_causal in ((1, True), (3, False)):
        found = attention(query[:, :, :queries], *one, policy=policy, is_causal=is_causal)
        wanted = one[1].repeat_interleave(2, dim=1).expand(found.shape)
        torch.testing.assert_close(found, wanted)
    assert sharpmax.softmax(np.array([[5.0]]), policy).tolist() == [[1.0]]


@given(st.floats(-8, 8), st.floats(-2, 2), st.integers(1, LENGTH - 2))
def test_padding_changes_nothing(shift, log_power, padding):
    policy = LogLinear(8, 0.2, sink_apart=True, sink=shift, sink_log_power=log_power)
    query, key, value = (x.detach() for x in tensors())
    mask = (torch.arange(LENGTH) >= padding)[None, None, None]
    found = attention(query, key, value, policy=policy, is_causal=True, mask=mask)
    parts = (x[:, :, padding:] for x in (query, key, value))
    wanted = attention(*parts, policy=policy, is_causal=True)
    torch.testing.assert_close(found[:, :, padding:], wanted)


def test_without_numbers_nothing_changes():
    given = tensors()
    policy = PerHead(APART, {"sink": torch.zeros(4), "offset": torch.zeros(4)})
    assert policy.sets_sink_apart  # as it may, in training
    assert not PerHead(APART, {"sink": [0.0] * 4}).sets_sink_apart
    assert PerHead(APART, {"sink": [0.0, 0.0, 1.0, 0.0]}).sets_sink_apart
    assert PerHead(APART, {"offset": [0.0, 0.0, 1.0, 0.0]}).sets_sink_apart
    plain = attention(*given, policy=sharpmax.Fixed(1.0), is_causal=True)
    torch.testing.assert_close(attention(*given, policy=policy, is_causal=True), plain)


@pytest.mark.parametrize("queries", [LENGTH, LENGTH + 5, 5])
@pytest.mark.parametrize("hidden", [None, 3])
@pytest.mark.parametrize("window", [None, 7])
def test_statistics_are_those_of_all_keys(queries, hidden, window):
    query, key, value = tensors(queries)
    mask = None if hidden is None else (torch.arange(LENGTH) != hidden)[None, None, None]
    settings = {"is_causal": True, "implementation": "chunked", "mask": mask, "window": window}
    _, found = attention(query, key, value, policy=POLICY, return_statistics=True, **settings)
    wanted = row_statistics(query, key, **settings)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_in_half_precision():
    given = [x.detach().to(torch.bfloat16) for x in tensors()]
    found = attention(*given, policy=POLICY, is_causal=True)
    wanted = attention(*(x.double() for x in given), policy=POLICY, is_causal=True)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), wanted, atol=0.05, rtol=0.05)


@pytest.mark.gpu
@POLICIES
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


ROWS = torch.arange(LENGTH)
SEEN = {
    "all": None,
    "packed": ((ROWS // 6 * 6)[:, None] <= ROWS)[None, None],
    "padded": (torch.tensor([0, 9])[:, None] <= ROWS)[:, None, None],
    "some see none": (ROWS[:, None] % 5 > 0)[None, None] & (ROWS > 2),
}
NAMES = "offset", "above", "sink", "sink_above", "sink_log_power"


def output_and_gradients(device, dtype, mask, **settings):
    numbers = torch.randn(len(NAMES), 4, generator=torch.Generator().manual_seed(3))
    given = [x.detach().to(device, dtype).requires_grad_() for x in tensors()]
    given.append(numbers.to(device, torch.promote_types(dtype, torch.float32)).requires_grad_())
    base = LogLinear(8, low=0.5, high=1.0, sink_apart=True)
    policy = PerHead(base, dict(zip(NAMES, given[-1].unbind(), strict=True)))
    moved = None if mask is None else mask.to(device)
    found = attention(*given[:3], policy=policy, mask=moved, **settings)
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(4))
    return found.detach(), *torch.autograd.grad(found, given, upstream.to(found))


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("mask", SEEN.values(), ids=SEEN)
def test_the_kernels_together_do_what_the_definition_does(mask, is_causal, window, monkeypatch):
    settings = {"mask": mask, "is_causal": is_causal, "window": window}
    wanted = output_and_gradients("cpu", torch.float64, **settings)
    single = torch.float32  # by Triton's interpreter
    monkeypatch.setattr(choice, "_kernels_take", lambda length: length.dtype == single)
    monkeypatch.setattr(sink, "_has_kernels", lambda rows: rows.dtype == single)
    found = output_and_gradients("cpu", single, **settings)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("mask", SEEN.values(), ids=SEEN)
def test_gradients_on_a_gpu(mask):
    settings = {"mask": mask, "is_causal": True}
    for a, b in zip(
        output_and_gradients("cuda", torch.bfloat16, **settings),
        output_and_gradients("cpu", torch.float64, **settings),
        strict=True,
    ):
        assert float((a.double().cpu() - b).norm() / b.norm()) < 0.04


def test_heads_that_rest_lose_no_digits():
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, 1, 64, 16, generator=generator) for _ in "qkv")
    query, key = query.abs(), 0.1 * key
    key[:, :, 0], value[:, :, 0] = 3.0, 0.0  # on which nearly all weight lies, and nothing else
    given = [x.bfloat16() for x in (query, key, value)]
    truth = [x.double() for x in given]
    for shift in (7.0, 2.0, -2.0, -8.0):
        policy = LogLinear(64, sink_apart=True, sink=shift)
        wanted = attention(*truth, policy=policy, is_causal=True)
        found = attention(*given, policy=policy, is_causal=True).double()
        assert float((found - wanted).norm() / wanted.norm()) < 0.02, shift


def test_policies_by_head_survive_a_file_and_a_gradient_left_out(tmp_path):
    policy = Detached(BY_HEAD)
    policy.save(tmp_path)
    assert Policy.load(tmp_path) == policy
    assert policy.sets_sink_apart
    given = tensors()
    found = attention(*given, policy=policy, is_causal=True)
    torch.testing.assert_close(found, attention(*given, policy=BY_HEAD, is_causal=True))


def test_what_it_cannot_do():
    given = tensors()
    with pytest.raises(NotImplementedError, match="differs by head"):
        attention(*given, policy=POLICY, mask=torch.ones(1, 4, 1, LENGTH, dtype=torch.bool))


@given(st.integers(2, 6), st.floats(-3, 3), st.floats(-1, 1), st.sampled_from([0, 1, -1]))
def test_the_softmax_of_any_array_raises_the_odds_of_its_first(length, shift, power, axis):
    logits = np.random.default_rng(length).normal(size=(length, length))
    policy = LogLinear(64, 0.3, sink_apart=True, sink=shift, sink_log_power=power)
    found = np.moveaxis(sharpmax.softmax(logits, policy, axis=axis), axis, -1)
    plain = np.moveaxis(sharpmax.softmax(logits, sharpmax.Fixed(1.0), axis=axis), axis, -1)
    odds, wanted = (p[..., 0] / (1 - p[..., 0]) for p in (found, plain))
    np.testing.assert_allclose(odds, wanted ** np.exp(power) * np.exp(shift), rtol=1e-9)
    rest = np.moveaxis(logits, axis, -1)[..., 1:]
    others = found[..., 1:] / found[..., 1:].sum(-1, keepdims=True)
    sharper = sharpmax.softmax(rest, sharpmax.Fixed(np.exp(0.3)))
    np.testing.assert_allclose(others, sharper, atol=1e-12)


@pytest.mark.parametrize("log_odds", [0.0, 10.0, 16.0, 30.0])
def test_what_a_sink_leaves_is_exact_in_single_precision(log_odds):
    logits = np.array([[log_odds, 0.0, 0.5, 1.0]])
    policy = LogLinear(64, sink_apart=True, sink=1e-30)
    found = sharpmax.softmax(logits.astype(np.float32), policy)[0, 1:]
    wanted = sharpmax.softmax(logits, sharpmax.Fixed(1.0))[0, 1:]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_the_softmax_takes_the_first_that_is_seen():
    logits = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    seen = torch.tensor(
        [[True] * 5, [False, True, True, True, False], [False] * 5, [False, True, *[False] * 3]]
    )
    gamma = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    policy = LogLinear(64, 0.3, sink_apart=True, sink=gamma)
    found = sharpmax.softmax(logits, policy, where=seen)
    for row, keys in ((0, slice(0, 5)), (1, slice(1, 4))):
        wanted = sharpmax.softmax(logits[row, None, keys], policy)[0]
        torch.testing.assert_close(found[row, keys], wanted)
    assert bool((found[~seen] == 0).all())
    torch.testing.assert_close(found.sum(-1), torch.tensor([1.0, 1, 0, 1], dtype=torch.float64))
    gradients = torch.autograd.grad(found.square().sum(), (logits, gamma))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert bool((gradients[0][~seen] == 0).all())


def test_the_softmax_of_half_precision_hides_its_most_negative_number():
    logits = torch.tensor([[torch.finfo(torch.float16).min, 1.0, 2.0]], dtype=torch.float16)
    found = sharpmax.softmax(logits, LogLinear(64, sink_apart=True, sink=1.0))
    assert found.dtype == torch.float16
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.5, 0.5]], dtype=torch.float16))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's
@POLICIES
def test_it_compiles_in_one_graph(policy):
    given = [x.detach().float() for x in tensors()]
    compiled = torch.compile(attention, fullgraph=True, backend="eager")
    found = compiled(*given, policy=policy, is_causal=True)
    torch.testing.assert_close(found, attention(*given, policy=policy, is_causal=True))
