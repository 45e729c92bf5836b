"""Decoding: a few queries over a cache, against the definition and against its own bounds.

The kernels run under Triton's interpreter where there is no GPU (see conftest.py).
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import sharpmax
from sharpmax import HELD, PAPER, EntropyCap, Fixed, LogLength, PerHead, RowStatistics
from sharpmax.torch import attention
from sharpmax.torch import decode as decoding
from sharpmax.torch.decode import MOST_ROWS, decode, refusal
from sharpmax.torch.kernels import decode as kernel
from sharpmax.torch.scores import Scores

gpu = pytest.mark.gpu
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Case:
    """Shapes and settings of a call; `mask` is the shape of a mask that hides a third."""

    batch: int = 1
    heads: int = 2
    key_heads: int = 2
    queries: int = 1
    keys: int = 300
    width: int = 16
    value_width: int = 16
    mask: tuple[int, ...] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def tensors(self, dtype: torch.dtype) -> tuple[Scores, Tensor]:
        generator = torch.Generator().manual_seed(0)
        query, key, value = (
            (1.5 * torch.randn(shape, generator=generator)).to(DEVICE, dtype)
            for shape in [
                (self.batch, self.heads, self.queries, self.width),
                (self.batch, self.key_heads, self.keys, self.width),
                (self.batch, self.key_heads, self.keys, self.value_width),
            ]
        )
        mask = None
        if self.mask is not None:
            mask = (torch.rand(self.mask, generator=generator) < 2 / 3).to(DEVICE)
        settings = {"is_causal": False, "window": None, "softcap": None, "scale": None}
        return Scores.of(query, key, mask=mask, **settings | self.settings), value


causal = {"is_causal": True}
CASES = {
    "one query": Case(),
    "one key": Case(keys=1),
    "less than a tile": Case(keys=37),
    "three queries": Case(queries=3, settings=causal),
    "grouped": Case(batch=2, heads=8, settings=causal),
    "grouped, three queries": Case(heads=8, queries=3, settings=causal),
    "three queries that see all": Case(queries=3, keys=37),
    "more queries than keys": Case(queries=5, keys=3, settings=causal),
    "as many rows as a tile": Case(heads=8, queries=4, settings=causal),
    "odd width": Case(width=40, value_width=21),
    "wide": Case(heads=4, width=128, value_width=128),
    "wider values": Case(width=16, value_width=256),
    "window": Case(queries=3, settings={"window": 50, **causal}),
    "window both ways": Case(queries=3, settings={"window": 120}),
    "window wider than the cache": Case(keys=37, settings={"window": 1000, **causal}),
    "mask": Case(batch=2, heads=4, queries=3, mask=(2, 4, 3, 300)),
    "mask of keys": Case(batch=2, mask=(2, 1, 1, 300)),
    "mask in a window": Case(queries=3, mask=(3, 300), settings={"window": 99, **causal}),
    "mask of queries in a window": Case(queries=3, mask=(3, 1), settings={"window": 99}),
    "softcap": Case(settings={"softcap": 3.0}),
    "everything": Case(
        batch=2,
        heads=8,
        queries=2,
        width=24,
        value_width=40,
        mask=(2, 8, 2, 300),
        settings={"softcap": 4.0, "window": 200, "scale": 0.4, **causal},
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
BY_HEAD = PerHead(Fixed(1.0), {"beta": [0.5, 3.0]})
POLICIES = [PAPER, HELD, Fixed(1.0), Fixed(2.5), LogLength(8, 0.4), BY_HEAD]


def visible(scores: Scores) -> Tensor | None:
    return scores.visible(slice(0, scores.shape[-1]), slice(0, scores.key.shape[2]))


def materialised(scores: Scores) -> Tensor:
    """All logits at once, in the precision of the tensors."""
    key = scores.key.repeat_interleave(scores.query.shape[1] // scores.key.shape[1], dim=1)
    logits = (scores.query @ key.mT) * scores.scale
    return logits if scores.softcap is None else scores.softcap * (logits / scores.softcap).tanh()


def sharpened(scores: Scores, value: Tensor, policy: Any) -> tuple[Tensor, RowStatistics]:
    """Attention and its statistics by their definition, in the precision of the tensors."""
    logits, where = materialised(scores), visible(scores)
    weights = sharpmax.softmax(logits, policy, where=where)
    value = value.repeat_interleave(scores.query.shape[1] // value.shape[1], dim=1)
    return weights @ value, RowStatistics.from_logits(logits, where=where)


def assert_fits(case: Case, dtype: torch.dtype, policy: Any = PAPER, **settings: Any) -> None:
    """At most twice as far from float64 as the materialised form."""
    scores, value = case.tensors(dtype)
    assert refusal(scores, value) is None
    out, statistics = decode(scores, value, policy, **settings)
    exact_scores = replace(scores, query=scores.query.double(), key=scores.key.double())
    exact, exact_statistics = sharpened(exact_scores, value.double(), policy)
    same, same_statistics = sharpened(scores, value, policy)
    assert out.dtype == dtype
    assert out.shape == exact.shape
    allowed = 2 * (same.double() - exact).norm() + 4 * torch.finfo(dtype).eps * exact.norm() + 1e-6
    assert (out.double() - exact).norm() <= allowed
    assert torch.equal(statistics.length.double(), exact_statistics.length)
    for name in ("max", "lse", "entropy"):
        ours, theirs, truth = (
            getattr(x, name).double() for x in (statistics, same_statistics, exact_statistics)
        )
        assert ours.shape == scores.shape
        finite = truth.isfinite()
        assert torch.equal(ours[~finite], truth[~finite])
        allowed = 2 * (theirs - truth)[finite].abs().max() + 1e-5
        assert (ours - truth)[finite].abs().max() <= allowed, name


# Agreement with the definition


@every_case
def test_decode(case):
    assert_fits(case, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_every_policy(policy, dtype):
    assert_fits(Case(queries=2, settings=causal), dtype, policy)


@pytest.mark.parametrize(
    "name", ["grouped, three queries", "odd width", "wide", "mask", "window", "softcap"]
)
def test_half_precision(name):
    assert_fits(CASES[name], torch.float16)


@pytest.mark.parametrize("queries", [3, 6, 10])
def test_more_rows_than_the_smallest_tile(queries):
    assert_fits(Case(heads=12, queries=queries, settings=causal), torch.float16)


@pytest.mark.parametrize("splits", [1, 2, 7, 1000])
def test_the_splits_do_not_change_the_result(splits, monkeypatch):
    scores, value = CASES["everything"].tensors(torch.float32)
    expected, expected_statistics = decode(scores, value, PAPER)
    monkeypatch.setattr(kernel, "_most_splits", lambda _, tiles, __: min(splits, tiles))
    out, statistics = decode(scores, value, PAPER)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(statistics, expected_statistics)


def test_a_policy_that_reads_the_maximum_gets_it():
    @dataclass(frozen=True)
    class ByTopWeight(sharpmax.Policy):
        reads = frozenset({"max", "lse"})

        def __call__(self, rows):
            return 1 + 0.3 * (rows.lse - rows.max)

    assert_fits(CASES["grouped"], torch.float32, ByTopWeight())


def test_a_policy_may_give_one_number():
    @dataclass(frozen=True)
    class AlwaysTwo(sharpmax.Policy):
        reads = frozenset()

        def __call__(self, rows):
            del rows
            return 2.0

    assert_fits(CASES["grouped"], torch.float32, AlwaysTwo())


def test_a_negative_beta_is_uniform():
    scores, value = CASES["one query"].tensors(torch.float32)
    out, _ = decode(scores, value, LogLength(1, slope=-5.0))
    torch.testing.assert_close(out, value.mean(2, keepdim=True))


def test_a_query_that_sees_nothing_gives_zeros():
    scores, value = CASES["three queries"].tensors(torch.float32)
    mask = torch.ones(3, 300, dtype=torch.bool, device=DEVICE)
    mask[1] = False
    for policy in (PAPER, LogLength(8, 0.4)):
        out, statistics = decode(replace(scores, mask=mask), value, policy)
        assert (out[:, :, 1] == 0).all()
        assert (out[:, :, 0] != 0).all()
        assert (statistics.entropy[:, :, 1] == 0).all()
        assert (statistics.length[:, :, 1] == 0).all()
        assert (statistics.max[:, :, 1] == -math.inf).all()
        assert (statistics.lse[:, :, 1] == -math.inf).all()


def test_a_cache_laid_out_otherwise():
    """Keys and values as (batch, keys, heads, width), part of a longer cache."""
    scores, value = CASES["grouped"].tensors(torch.float32)
    whole, _ = decode(scores, value, PAPER)
    key, other = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (scores.key, value))
    query = scores.query.mT.contiguous().mT
    key, other = (torch.nn.functional.pad(x, (0, 0, 0, 50))[:, :, :300] for x in (key, other))
    out, _ = decode(replace(scores, query=query, key=key), other, PAPER)
    torch.testing.assert_close(out, whole)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_nan_is_not_hidden():
    scores, value = CASES["one query"].tensors(torch.float32)
    scores.key[0, 0, 7] = math.nan
    out, statistics = decode(scores, value, Fixed(50.0))
    assert out[0, 0].isnan().all()
    assert statistics.entropy[0, 0].isnan().all()
    assert out[0, 1].isfinite().all()


# What is left out


def sharp(at: int, strength: float, keys: int = 300) -> tuple[Scores, Tensor]:
    """One key aligned to the query of every head, the others across it."""
    scores, value = Case(heads=4, keys=keys).tensors(torch.float32)
    query, key = torch.zeros_like(scores.query), scores.key.clone()
    query[..., 0] = 1
    key[..., 0] *= 0.1
    key[:, :, at, 0] = strength
    return replace(scores, query=query, key=key, scale=1.0), value


@pytest.mark.parametrize("strength", [5.0, 8.0, 12.0, 20.0])
@pytest.mark.parametrize("policy", [Fixed(1.0), Fixed(2.0), PAPER], ids=["one", "two", "paper"])
@pytest.mark.parametrize("lost", [1e-6, 1e-2])
def test_no_more_is_lost_than_allowed(strength, policy, lost):
    scores, value = sharp(170, strength)
    whole, _ = decode(scores, value, policy, lost=0.0)
    out, _ = decode(scores, value, policy, lost=lost)
    rounding = 16 * torch.finfo(torch.float32).eps
    assert (out - whole).abs().max() <= (2 * lost + rounding) * value.abs().max()


@pytest.mark.parametrize("at", [0, 170, 299])
def test_values_without_weight_are_not_read(at):
    scores, value = sharp(at, strength=30.0)
    tile = at // 64
    poisoned = torch.full_like(value, math.nan)
    poisoned[:, :, 64 * tile : 64 * (tile + 1)] = value[:, :, 64 * tile : 64 * (tile + 1)]
    out, _ = decode(scores, poisoned, Fixed(2.0))
    torch.testing.assert_close(out, value[:, :, at, None].repeat_interleave(2, dim=1))
    out, _ = decode(scores, poisoned, Fixed(2.0), lost=0.0)
    assert out.isnan().all()


def test_values_that_one_row_needs_are_read():
    """Two heads share their keys and each has a key of its own that counts."""
    scores, value = Case(key_heads=1).tensors(torch.float32)
    query, key = torch.zeros_like(scores.query), torch.zeros_like(scores.key)
    query[:, 0, :, 0] = 1
    query[:, 1, :, 1] = 1
    key[:, :, 10, 0] = 40.0
    key[:, :, 290, 1] = 40.0
    out, _ = decode(replace(scores, query=query, key=key, scale=1.0), value, Fixed(1.0))
    torch.testing.assert_close(out, value[:, :, [10, 290]].transpose(0, 1).view_as(out))


def test_more_tiles_than_are_looked_at_at_once():
    scores, value = sharp(3000, strength=9.0, keys=3500)
    exact, _ = sharpened(scores, value, Fixed(1.0))
    for lost in (0.0, 1e-6):
        out, _ = decode(scores, value, Fixed(1.0), lost=lost)
        torch.testing.assert_close(out, exact)


# Refusals


def test_refusals_say_why(monkeypatch):
    scores, value = CASES["one query"].tensors(torch.float32)
    assert refusal(scores, value) is None
    for dtype, most in MOST_ROWS.items():
        full = Case(heads=2, key_heads=1, queries=most // 2)
        assert refusal(*full.tensors(dtype)) is None
        over = replace(full, queries=full.queries + 1)
        assert f"up to {most} queries times heads" in refusal(*over.tensors(dtype))
    for reason, case in [
        ("widths up to 256, got 257", Case(width=257)),
        ("widths up to 256, got 300", Case(value_width=300)),
        ("need at least one query", Case(queries=0)),
        ("need at least one query", Case(batch=0)),
        ("values of a width of at least 1", Case(value_width=0)),
        ("scale above 0, got -1.0", Case(settings={"scale": -1.0})),
    ]:
        assert reason in refusal(*case.tensors(torch.float32))
    assert "torch.float64" in refusal(*Case().tensors(torch.float64))
    for name in ("query", "key"):
        wanting = replace(scores, **{name: getattr(scores, name).clone().requires_grad_()})
        assert "no gradient" in refusal(wanting, value)
        with torch.no_grad():
            assert refusal(wanting, value) is None
    assert "no gradient" in refusal(scores, value.clone().requires_grad_())
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert "torch.compile" in refusal(scores, value)
    monkeypatch.undo()
    if DEVICE == "cpu":
        monkeypatch.setattr(decoding, "interpreted", lambda: False)
        assert "need a CUDA device, got cpu" in refusal(scores, value)
    monkeypatch.setattr(decoding, "HAS_TRITON", False)
    assert "need Triton" in refusal(scores, value)


def test_bad_arguments_are_named():
    scores, value = CASES["one query"].tensors(torch.float32)
    with pytest.raises(NotImplementedError, match="EntropyCap"):
        decode(scores, value, EntropyCap(1.0))
    for lost in (-1e-6, 1.0, math.nan):
        with pytest.raises(ValueError, match="lost must be"):
            attention(scores.query, scores.key, value, lost=lost)
    trained = LogLength(8.0, torch.tensor(0.4, device=DEVICE, requires_grad=True))
    with pytest.raises(NotImplementedError, match="the policy wants one"):
        decode(scores, value, trained)
    with torch.no_grad():
        decode(scores, value, trained)


# On a GPU

LONG_CASES = {
    f"{keys} keys, {width} wide, {queries} queries, {heads} heads": Case(
        batch=2, heads=heads, queries=queries, keys=keys, width=width, value_width=width
    )
    for keys in (1000, 70_001)
    for width in (64, 80, 128, 256)
    for queries, heads in ((1, 8), (4, 16), (16, 8))
} | {"more heads than processors": Case(batch=200, keys=9000)}


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", (CASES | LONG_CASES).values(), ids=(CASES | LONG_CASES).keys())
def test_decode_on_a_gpu(case, dtype):
    if refusal(*case.tensors(dtype)) is None:  # refusals have a test of their own
        assert_fits(case, dtype)


@gpu
def test_decode_in_a_cuda_graph():
    scores, value = Case(heads=8, keys=5000, width=128, value_width=128).tensors(torch.bfloat16)
    expected, _ = decode(scores, value, PAPER)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = decode(scores, value, PAPER)
    out.zero_()
    graph.replay()
    assert torch.equal(out, expected)
