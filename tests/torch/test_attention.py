"""Sharpened attention and its row statistics: every implementation against the definition.

Triton's kernels run under its interpreter where there is no GPU (see conftest.py); on a GPU,
`pytest -m gpu` runs the same tests there on more and larger shapes.
"""

import importlib
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from attention_cases import (
    CASES,
    LARGE_CASES,
    Case,
    assert_attention_fits,
    assert_statistics_fit,
    assert_tempered_fits,
    causal,
    materialised,
    poison_fresh_memory,
    visible,
)
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import sharpmax
from sharpmax import HELD, PAPER, Detached, EntropyCap, Fixed, LogLength, PerHead
from sharpmax.rows import LogitRows
from sharpmax.torch import attention, row_statistics
from sharpmax.torch.attention_rows import AttentionRows
from sharpmax.torch.scores import Scores
from sharpmax.torch.tempered import attend, chunked, sdpa
from sharpmax.torch.tempered.fused import attend_by

gpu = pytest.mark.gpu


every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
POLICIES = [Fixed(1.0), Fixed(2.0), PAPER, HELD, LogLength(8, 0.4), EntropyCap(0.8)]
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    poison_fresh_memory(monkeypatch)


# Agreement with the definition


@every_case
@pytest.mark.parametrize("implementation", ["reference", "chunked", "flash", "triton"])
def test_row_statistics(case, implementation):
    assert_statistics_fit(case, torch.float32, "cpu", implementation)


@pytest.mark.parametrize(
    ("implementation", "dtype"),
    [
        ("chunked", torch.bfloat16),
        ("chunked", torch.float16),
        ("flash", torch.bfloat16),
        ("flash", torch.float16),
        ("triton", torch.float16),  # the interpreter's bf16 products are wrong; a GPU's are not
    ],
)
def test_row_statistics_in_half_precision(implementation, dtype):
    assert_statistics_fit(CASES["causal"], dtype, "cpu", implementation)


@every_case
def test_attention_at_a_given_beta(case):
    assert_tempered_fits(case, torch.float32, "cpu", "triton")


def assert_rows_fit(case: Case, dtype: torch.dtype, device: str) -> None:
    """Entropy at any β, by the ladder and by itself, and the β that brings it to a cap."""
    query, key, _ = case.tensors(dtype, device)
    settings = {"is_causal": False, "mask": None, "window": None, "softcap": None, "scale": None}
    scores = Scores.of(query, key, **settings | case.arguments(device))
    in_training = scores.softcap is None
    rows = AttentionRows(scores if in_training else replace(scores, query=query.detach()))
    rows = rows if in_training else AttentionRows(replace(rows.scores, key=key.detach()))
    exact_query, exact_key = (x.detach().double().requires_grad_() for x in (query, key))
    seen = visible(case).to(device)
    exact = LogitRows.of(materialised(case, exact_query, exact_key), where=seen)
    same = LogitRows.of(materialised(case, query, key), where=seen)
    unit = 1e-5 if dtype == torch.float32 else 1e-3
    beta = 0.5 + torch.rand(scores.shape, generator=torch.Generator().manual_seed(3)).to(device)
    for rung, entropy in enumerate(rows.ladder(beta).unbind(-1)):
        truth, _ = exact.entropy_at(2**rung * beta.double())
        error = (same.entropy_at(2**rung * beta)[0] - truth).abs().max()
        assert (entropy - truth).abs().max() <= 2 * error + 2**rung * unit
    truth, slope = exact.entropy_at(beta.double())
    ours, our_slope = rows.entropy_at(beta)
    error = (same.entropy_at(beta)[1] - slope).abs().max()
    assert (our_slope - slope).abs().max() <= 2 * error + 10 * unit
    maximum = exact.max
    assert torch.allclose(rows.max.double(), maximum, atol=100 * unit, rtol=unit)
    cap = EntropyCap(0.8)
    ours, truth = cap(rows), cap(exact)
    reached, _ = exact.entropy_at(ours.double())
    wanted, _ = exact.entropy_at(truth)
    assert (reached - wanted).abs().max() <= 0.008 + 10 * unit
    if in_training:
        grad = torch.randn(scores.shape, generator=torch.Generator().manual_seed(4)).to(device)
        free = (truth > 1) & (truth < 50)
        leaves, exact_leaves = (query, key), (exact_query, exact_key)
        # The same precision: β is folded into the query, and β's gradient is −(∂H/∂s)/(∂H/∂β).
        folded = materialised(case, scores.sharper_query(ours.detach()), key)
        entropy, _ = LogitRows.of(folded, where=seen).entropy_at(1.0)
        _, slope = exact.entropy_at(truth.detach())
        same_beta = -entropy / torch.where(free, slope.detach(), 1.0)
        grads = [
            torch.autograd.grad(torch.where(free, beta, 0).mul(grad).sum(), of)
            for beta, of in ((ours, leaves), (same_beta, leaves), (truth, exact_leaves))
        ]
        for x, y, z in zip(*grads, strict=True):
            assert (x.double() - z).norm() <= 2 * (y.double() - z).norm() + 0.05 * z.norm() + 1e-4


@every_case
def test_rows_made_anew(case):
    assert_rows_fit(case, torch.float32, "cpu")


def test_attention_at_a_given_beta_in_half_precision():
    assert_tempered_fits(CASES["everything"], torch.float16, "cpu", "triton")


@every_case
@every_policy
def test_attention(case, policy):
    assert_attention_fits(case, torch.float32, "cpu", policy)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["causal", "grouped", "softcap", "mask"])
def test_attention_in_half_precision(name, dtype):
    assert_attention_fits(CASES[name], dtype, "cpu", PAPER)


@pytest.mark.parametrize("implementation", ["reference", "chunked", "flash"])
@pytest.mark.parametrize("name", ["causal", "everything"])
def test_gradient_of_the_statistics_in_float64(name, implementation):
    case = CASES[name]
    query, key, _ = case.tensors(torch.float64, "cpu")
    query, key = (x[:1, :, :5].detach().requires_grad_() for x in (query, key))

    def entropy(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        statistics = row_statistics(
            query, key, implementation=implementation, is_causal=True, softcap=softcap
        )
        return statistics.entropy, statistics.lse

    softcap = case.settings.get("softcap")
    if implementation == "flash" and softcap:
        with pytest.raises(NotImplementedError, match="cannot apply a softcap"):
            entropy(query, key)
    else:
        assert torch.autograd.gradcheck(entropy, (query, key))


@every_policy
def test_gradient_through_the_policy_in_float64(policy):
    case = Case(heads=2, key_heads=1, queries=4, keys=6, width=3, value_width=2)
    tensors = case.tensors(torch.float64, "cpu")
    assert torch.autograd.gradcheck(
        lambda *x: attention(*x, policy=policy, is_causal=True), tensors
    )


def test_chunks_do_not_change_the_result(monkeypatch):
    case = CASES["everything"]
    query, key, value = case.tensors(torch.float32, "cpu")
    whole = attention(query, key, value, **case.arguments("cpu"))
    monkeypatch.setattr("sharpmax.torch.scores.CHUNK_ELEMENTS", 700)
    parts = attention(query, key, value, **case.arguments("cpu"))
    torch.testing.assert_close(parts, whole)
    statistics = row_statistics(query, key, implementation="chunked", **case.arguments("cpu"))
    reference = row_statistics(query, key, implementation="reference", **case.arguments("cpu"))
    torch.testing.assert_close(statistics, reference)


# Special cases


@pytest.mark.parametrize("name", ["all keys", "causal", "grouped", "other value width"])
def test_fixed_one_is_sdpa(name):
    case = CASES[name]
    query, key, value = case.tensors(torch.float32, "cpu")
    expected = scaled_dot_product_attention(
        query, key, value, is_causal=case.settings.get("is_causal", False), enable_gqa=True
    )
    out = attention(query, key, value, policy=Fixed(1.0), **case.arguments("cpu"))
    torch.testing.assert_close(out, expected)


def test_a_query_that_sees_nothing_gives_zeros():
    query, key, value = CASES["all keys"].tensors(torch.float32, "cpu")
    mask = torch.ones(37, 37, dtype=torch.bool)
    mask[3] = False
    out, statistics = attention(query, key, value, mask=mask, return_statistics=True)
    assert (out[:, :, 3] == 0).all()
    assert (statistics.entropy[:, :, 3] == 0).all()
    assert (statistics.length[:, :, 3] == 0).all()
    (grad,) = torch.autograd.grad((out**2).sum(), query)
    assert (grad[:, :, 3] == 0).all()


def test_no_batch_and_no_queries():
    for batch, queries in ((0, 5), (2, 0)):
        query = torch.zeros(batch, 4, queries, 8)
        key = value = torch.zeros(batch, 2, 7, 8)
        for policy in (PAPER, Fixed(2.0), EntropyCap(0.5)):
            assert attention(query, key, value, policy=policy).shape == query.shape


def test_policies_by_head():
    case = CASES["grouped"]
    query, key, value = case.tensors(torch.float32, "cpu")
    betas = [1.0 + 0.2 * head for head in range(8)]
    policy = PerHead(Fixed(1.0), {"beta": betas})
    out = attention(query, key, value, policy=policy, is_causal=True)
    for head, beta in enumerate(betas):
        pair = key[:, head // 4, None], value[:, head // 4, None]
        one = attention(query[:, head, None], *pair, policy=Fixed(beta), is_causal=True)
        torch.testing.assert_close(out[:, head, None], one)


def test_a_policy_that_reads_only_length_makes_no_statistics(monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("a statistics pass was made")

    module = importlib.import_module("sharpmax.torch.attention")
    monkeypatch.setattr(module, "chosen", refuse)
    query, key, value = CASES["causal"].tensors(torch.float32, "cpu")
    for policy in (Fixed(2.0), LogLength(4, 0.5)):
        attention(query, key, value, policy=policy, is_causal=True)
    with pytest.raises(AssertionError, match="a statistics pass was made"):
        attention(query, key, value, policy=PAPER, is_causal=True)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("policy", [PAPER, LogLength(4, 0.3)], ids=["entropy", "length"])
def test_compiles(policy):
    torch._dynamo.reset()
    query, key, value = CASES["causal"].tensors(torch.float32, "cpu")
    compiled = torch.compile(
        lambda q, k, v: attention(q, k, v, policy=policy, is_causal=True), backend="aot_eager"
    )
    out = compiled(query, key, value)
    torch.testing.assert_close(out, attention(query, key, value, policy=policy, is_causal=True))
    out.sum().backward()
    assert query.grad is not None


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("implementation", ["triton", "flash"])
def test_derivatives_of_other_kinds_are_refused_where_they_would_be_wrong(implementation):
    query, key, _ = CASES["causal"].tensors(torch.float32, "cpu")
    query, key = query.detach(), key.detach()

    def lse(query):
        found = row_statistics(query, key, is_causal=True, implementation=implementation)
        return found.lse.square().sum()

    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.func.jvp(lse, (query,), (torch.ones_like(query),))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(query, torch.ones_like(query))
        with pytest.raises((RuntimeError, NotImplementedError)):
            lse(dual)
    query.requires_grad_()
    (gradient,) = torch.autograd.grad(lse(query), query, create_graph=True)
    with pytest.raises((RuntimeError, NotImplementedError)):
        gradient.sum().backward()


def test_a_beta_of_any_shape_in_chunks(monkeypatch):
    monkeypatch.setattr("sharpmax.torch.scores.CHUNK_ELEMENTS", 300)
    query, key, value = CASES["causal"].tensors(torch.float32, "cpu")
    for beta, policy in [
        (torch.tensor([1.0, 2.0])[:, None], PerHead(Fixed(1.0), {"beta": [1.0, 2.0]})),
        (torch.tensor(2.0), Fixed(torch.tensor(2.0))),
    ]:
        out = attention(query, key, value, policy=policy, is_causal=True, window=50)
        whole = attention(query * beta[..., None], key, value, policy=Fixed(1.0), is_causal=True)
        torch.testing.assert_close(out, whole)


@pytest.mark.parametrize("scale", [0.0, -0.5])
@pytest.mark.parametrize("policy", [PAPER, Fixed(1.0)], ids=["entropy", "fixed"])
def test_a_scale_that_is_not_positive(scale, policy):
    case = Case(settings={"scale": scale, **causal})
    assert_attention_fits(case, torch.float32, "cpu", policy)


def test_tensors_of_any_strides():
    query, key, value = (torch.randn(1, 2, 16, 64) for _ in "qkv")
    expected = attention(query.mT.contiguous(), key.mT.contiguous(), value.mT.contiguous())
    torch.testing.assert_close(attention(query.mT, key.mT, value.mT), expected)
    for implementation in ("flash", "triton", "chunked"):
        ours = row_statistics(query.mT, key.mT, implementation=implementation).entropy
        theirs = row_statistics(query.mT, key.mT, implementation="reference").entropy
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_float16_stays_finite_at_any_beta():
    query, key, value = (torch.randn(1, 2, 20, 16, dtype=torch.float16) for _ in "qkv")
    by_row = torch.full((1, 2, 20), 65536.0)
    scores = Scores.of(query, key, is_causal=True, mask=None, window=None, softcap=None, scale=None)
    for out in (
        attention(query, key, value, policy=Fixed(70000.0)),
        attend(scores, value, by_row),
        attend_by("triton", scores, value, by_row, None),
    ):
        assert out.isfinite().all()


def test_detached_gives_no_gradient_to_the_policy_either():
    slope = torch.tensor([0.1, 0.2], requires_grad=True)
    policy = Detached(PerHead(LogLength(8, 0.0), {"slope": slope}))
    query, key, value = (torch.randn(1, 2, 20, 16) for _ in "qkv")
    assert not attention(query, key, value, policy=policy).requires_grad
    assert attention(query, key, value, policy=policy.base).requires_grad


def test_no_gradient_is_lost_through_the_maximum():
    @dataclass(frozen=True)
    class ByMaximum(sharpmax.Policy):
        reads = frozenset({"max"})

        def __call__(self, rows: Any) -> Any:
            return 1 + rows.max.abs()

    query, key, value = CASES["causal"].tensors(torch.float32, "cpu")
    with pytest.raises(NotImplementedError, match="no gradient by the rows' maximum"):
        attention(query, key, value, policy=ByMaximum(), implementation="triton")
    assert attention(query, key, value, policy=ByMaximum()).requires_grad


def test_a_policy_that_reads_the_maximum_gets_it():
    @dataclass(frozen=True)
    class ByLargestWeight(sharpmax.Policy):
        reads = frozenset({"max", "lse"})

        def __call__(self, rows):
            return 1 + 0.3 * (rows.lse - rows.max)

    assert_attention_fits(CASES["causal"], torch.float32, "cpu", ByLargestWeight())
    query, key, value = CASES["causal"].tensors(torch.float32, "cpu")
    with pytest.raises(NotImplementedError, match="cannot tell the rows' maximum"):
        attention(query, key, value, policy=ByLargestWeight(), implementation="flash")


@pytest.mark.parametrize(
    "shape", [(), (1,), (37,), (37, 1), (37, 37), (2, 1, 1, 37), (1, 6, 37, 37)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_mask_alone_is_left_to_pytorchs_kernel_on_a_cpu(shape, dtype):
    query = torch.randn(2, 6, 37, 16, dtype=dtype, requires_grad=True)
    key, value = (torch.randn(2, 3, 37, 16, dtype=dtype, requires_grad=True) for _ in range(2))
    mask = torch.rand(shape) < 0.5 if shape else torch.tensor(True)
    beta = 1 + torch.rand(2, 6, 37)
    settings = {"window": None, "softcap": None, "scale": None}
    scores = Scores.of(query, key, is_causal=False, mask=mask, **settings)
    assert sdpa.refusal(scores, value, beta, None) is None
    assert sdpa.refusal(scores, value[..., :8], beta, None) is not None  # would be quadratic
    causal = Scores.of(query, key, is_causal=True, mask=mask, **settings)
    assert sdpa.refusal(causal, value, beta, None) is not None
    found, wanted = (way.attend(scores, value, beta, None) for way in (sdpa, chunked))
    tolerance = {"atol": 1e-5 if dtype == torch.float32 else 2e-2, "rtol": 1e-2}
    torch.testing.assert_close(found, wanted, **tolerance)
    inputs = query, key, value
    gradients = [torch.autograd.grad(out.float().square().sum(), inputs) for out in (found, wanted)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)


def test_a_negative_beta_is_uniform_with_and_without_a_mask():
    query, key, value = CASES["all keys"].tensors(torch.float32, "cpu")
    policy = LogLength(1, slope=-5.0)
    mask = torch.ones(37, 37, dtype=torch.bool)
    for arguments in ({}, {"mask": mask}):
        out = attention(query, key, value, policy=policy, **arguments)
        torch.testing.assert_close(out, value.mean(2, keepdim=True).expand_as(out))


def test_entropy_is_never_negative_on_large_logits():
    generator = torch.Generator().manual_seed(0)
    query, key = (30 * torch.randn(1, 1, 64, 64, generator=generator) for _ in range(2))
    assert (row_statistics(query, key).entropy >= 0).all()


# Bad input


def test_bad_arguments_are_named():
    query = key = value = torch.zeros(2, 4, 5, 8)
    for message, error, call in [
        ("query must have shape", ValueError, lambda: attention(query[0], key, value)),
        ("key must be a torch.Tensor, got list", TypeError, lambda: attention(query, [], value)),
        (
            "query must have one of the dtypes",
            TypeError,
            lambda: attention(query.int(), key, value),
        ),
        (
            "key must have the dtype of query",
            ValueError,
            lambda: attention(query, key.half(), value),
        ),
        ("key must have the batch size", ValueError, lambda: attention(query, key[:1], value)),
        ("key must have the width", ValueError, lambda: attention(query, key[..., :4], value)),
        ("multiple of the 3 heads of key", ValueError, lambda: attention(query, key[:, :3], value)),
        ("key must hold at least one", ValueError, lambda: attention(query, key[:, :, :0], value)),
        ("value must have shape", ValueError, lambda: attention(query, key, value[:, :, :3])),
        ("value must have the dtype", ValueError, lambda: attention(query, key, value.half())),
        ("window must be", ValueError, lambda: attention(query, key, value, window=0)),
        ("softcap must be", ValueError, lambda: attention(query, key, value, softcap=math.inf)),
        (
            "scale must be a finite",
            ValueError,
            lambda: attention(query, key, value, scale=math.nan),
        ),
        ("window must be a whole", ValueError, lambda: attention(query, key, value, window=2.5)),
        (
            "query must have a width",
            ValueError,
            lambda: attention(query[..., :0], key[..., :0], value),
        ),
        (
            "implementation must be",
            ValueError,
            lambda: attention(query, key, value, policy=Fixed(2.0), implementation="x"),
        ),
        ("mask must be a boolean", TypeError, lambda: attention(query, key, value, mask=query)),
        (
            "mask must broadcast to",
            ValueError,
            lambda: attention(query, key, value, mask=torch.ones(3, 5, dtype=torch.bool)),
        ),
        ("softcap must be a number", TypeError, lambda: attention(query, key, value, softcap="a")),
        ("scale must be a number", TypeError, lambda: attention(query, key, value, scale="a")),
        ("is_causal must be", TypeError, lambda: attention(query, key, value, is_causal="no")),
        ("lost must be", ValueError, lambda: attention(query, key, value, lost="0")),
        (
            "policy must choose a β that broadcasts",
            ValueError,
            lambda: attention(query, key, value, policy=Fixed(torch.ones(7, 7))),
        ),
        (
            "leave implementation out",
            NotImplementedError,
            lambda: attention(query, key, value, policy=EntropyCap(1.0), implementation="triton"),
        ),
        ("policy must be", TypeError, lambda: attention(query, key, value, policy=2.0)),
        (
            "implementation must be one of hopper, triton, products, flash, chunked, reference",
            ValueError,
            lambda: row_statistics(query, key, implementation="fast"),
        ),
        (
            "the flash row statistics cannot apply a softcap",
            NotImplementedError,
            lambda: row_statistics(query, key, softcap=1.0, implementation="flash"),
        ),
    ]:
        with pytest.raises(error, match=message):
            call()


# On a GPU


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("implementation", ["flash", "triton", "hopper"])
@pytest.mark.parametrize("case", (CASES | LARGE_CASES).values(), ids=(CASES | LARGE_CASES).keys())
def test_row_statistics_on_a_gpu(case, implementation, dtype):
    assert_statistics_fit(case, dtype, "cuda", implementation)


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", (CASES | LARGE_CASES).values(), ids=(CASES | LARGE_CASES).keys())
def test_attention_at_a_given_beta_on_a_gpu(case, dtype):
    assert_tempered_fits(case, dtype, "cuda", "triton")


PLAIN_CASES = {
    name: case
    for name, case in (CASES | LARGE_CASES).items()
    if case.mask is None
    and not {"window", "softcap"} & case.settings.keys()
    and (case.queries == case.keys or not case.settings or case.queries == 1)
    and max(case.width, case.value_width) <= 128
    and case.width % 8 == case.value_width % 8 == 0
}


@gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", PLAIN_CASES.values(), ids=PLAIN_CASES.keys())
def test_attention_at_a_given_beta_on_hopper(case, dtype):
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a Hopper GPU")
    assert_tempered_fits(case, dtype, "cuda", "hopper")


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", (CASES | LARGE_CASES).values(), ids=(CASES | LARGE_CASES).keys())
def test_attention_on_a_gpu(case, dtype):
    assert_attention_fits(case, dtype, "cuda", PAPER)


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_case
def test_rows_made_anew_on_a_gpu(case, dtype):
    assert_rows_fit(case, dtype, "cuda")


@gpu
@pytest.mark.parametrize("name", ["causal", "window"])
def test_compiles_on_a_gpu(name):
    case = replace(CASES[name], width=64, value_width=64, queries=300, keys=300)
    tensors = case.tensors(torch.bfloat16, "cuda")
    expected = attention(*tensors, **case.settings)
    compiled = torch.compile(lambda *x: attention(*x, **case.settings), fullgraph=True)
    out = compiled(*tensors)
    grad = torch.randn_like(out)
    results = out, *torch.autograd.grad(out, tensors, grad)
    eager = expected, *torch.autograd.grad(expected, tensors, grad)
    for ours, theirs in zip(results, eager, strict=True):
        # They may run on different kernels: equal but for the rounding of bf16.
        assert (ours.double() - theirs.double()).norm() <= 2e-2 * theirs.double().norm()


@gpu
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_long_rows_on_a_gpu(policy):
    case = Case(queries=2500, keys=2500, width=128, value_width=128, settings=causal)
    assert_attention_fits(case, torch.bfloat16, "cuda", policy)
