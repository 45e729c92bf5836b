"""The fused softmax against the definition, `LogitRows`, in float64.

Triton's kernels run under its interpreter where there is no GPU (see conftest.py); on a GPU,
`pytest -m gpu` runs the same tests through `sharpmax.softmax` itself, and on larger shapes.
"""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import sharpmax
from sharpmax import HELD, PAPER, EntropyCap, Fixed, LogLength, PerHead, Policy, Polynomial
from sharpmax.rows import LogitRows
from sharpmax.torch.softmax import fused_softmax

gpu = pytest.mark.gpu
DEVICES = ["cpu"] if not torch.cuda.is_available() else ["cuda"]
INF = math.inf


@dataclass(frozen=True)
class LargestWeight(Policy):
    """β from the logarithm of the largest weight, for what the others do not read."""

    gain: float
    reads = frozenset({"max", "lse"})

    def __call__(self, rows: Any) -> Any:
        return 1 + self.gain * (rows.lse - rows.max)


@dataclass(frozen=True)
class MeanAndLse(Policy):
    """β from what has a gradient through the log-sum-exp as well as the entropy."""

    gain: float
    reads = frozenset({"mean", "lse"})

    def __call__(self, rows: Any) -> Any:
        return 1 + torch.sigmoid(self.gain * (rows.mean + rows.lse))


POLICIES = {
    "plain": Fixed(1.0),
    "fixed": Fixed(2.5),
    "fixed whole": Fixed(3),
    "uniform": Fixed(1e-20),
    "paper": PAPER,
    "held": HELD,
    "held early": Polynomial((0.5, 1.0), beyond="hold", end=1.5),
    "falling": Polynomial((-0.4, 1.0), minimum=0.7),
    "constant": Polynomial((2.0,), threshold=1.0),
    "length": LogLength(4, slope=0.3),
    "mean": MeanAndLse(0.3),
    "length by head": PerHead(LogLength(4, slope=0.0), {"slope": [0.1, 0.4]}),
    "paper by head": PerHead(PAPER, {"coefficients": [[c, c + 0.01] for c in PAPER.coefficients]}),
}
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
one_of_each_kind = pytest.mark.parametrize("name", ["fixed", "paper", "length"])


def random(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape))
    return (scale * torch.randn(shape, generator=generator)).to(dtype)


def composite(logits: Tensor, policy: Policy, axis: int = -1, where: Any = None) -> Tensor:
    rows = LogitRows.of(logits, axis, where)
    return rows.softmax(policy(rows))


def fused(logits: Tensor, policy: Policy, axis: int = -1, where: Any = None) -> Tensor:
    weights = fused_softmax(LogitRows.of(logits, axis, where), policy)
    assert weights is not None
    return weights


def value_and_gradient(softmax: Any, logits: Tensor, **arguments: Any) -> tuple[Tensor, Tensor]:
    """The weights, and the gradient of a sum of them with random factors."""
    leaf = logits.detach().requires_grad_()
    weights = softmax(leaf, **arguments)
    factors = random(*logits.shape, scale=1.0).to(logits)
    (gradient,) = torch.autograd.grad((weights * factors).sum(), leaf)
    return weights.detach(), gradient


def assert_agrees(logits: Tensor, device: str = "cpu", **arguments: Any) -> None:
    """Value and gradient: within 1e-6, or twice as far from float64 as the composite form.

    Triton's interpreter rounds bfloat16 towards zero, which adds half a unit in the last place.
    """
    logits = logits.to(device)
    if arguments.get("where") is not None:
        arguments["where"] = arguments["where"].to(device)
    ours = value_and_gradient(fused, logits, **arguments)
    same = value_and_gradient(composite, logits, **arguments)
    exact = value_and_gradient(composite, logits.double(), **arguments)
    rounding = 2**-8 if logits.dtype == torch.bfloat16 and device == "cpu" else 0.0
    for x, reference, truth in zip(ours, same, exact, strict=True):
        assert x.dtype == logits.dtype
        assert x.shape == logits.shape
        limit = 2 * (reference.double() - truth).abs().max().item() + 1e-6
        torch.testing.assert_close(x.double(), truth, rtol=rounding, atol=limit)
    with torch.no_grad():
        torch.testing.assert_close(fused(logits, **arguments), ours[0], rtol=1e-4, atol=1e-7)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def short_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that hold so little that even short rows are streamed."""
    monkeypatch.setattr("sharpmax.torch.kernels.softmax.HELD_NUMBERS", 64)


# Agreement


@every_policy
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_agrees_in_value_and_gradient(policy, dtype, device):
    assert_agrees(random(2, 2, 9, 37, dtype=dtype), device, policy=policy)


@every_policy
def test_agrees_with_a_mask(policy, device):
    logits = random(2, 2, 9, 37)
    seen = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0))
    assert_agrees(logits, device, policy=policy, where=seen < 0.5)
    assert_agrees(logits, device, policy=policy, where=seen[0, 0] < 0.04)  # some rows see nothing
    logits[seen < 0.5] = -INF
    logits[0, 0, :3, 5:] = torch.finfo(torch.float32).min
    assert_agrees(logits, device, policy=policy)


@every_policy
@pytest.mark.parametrize("length", [33, 100])
def test_streams_rows_that_do_not_fit(policy, length, short_programs, device):
    logits = random(1, 2, 5, length)
    logits[0, 0, 1, :40] = -INF
    logits[0, 1, 2] = logits[0, 1, 2].sort().values  # a new maximum in every block
    seen = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0)) < 0.7
    seen[0, 1, 3] = False
    assert_agrees(logits, device, policy=policy)
    assert_agrees(logits, device, policy=policy, where=seen)


@pytest.mark.parametrize("length", [1, 2, 3, 16, 31, 64, 65, 1000, 1025, 3000])
@pytest.mark.parametrize("name", ["paper", "length"])
def test_any_length(length, name, device):
    assert_agrees(random(3, length), device, policy=POLICIES[name])


@one_of_each_kind
@pytest.mark.parametrize("where", [(6,), (5, 1), (4, 1, 6), (1, 5, 6), (4, 5, 6), ()])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_any_axis_and_any_mask_that_broadcasts(name, where, axis, device):
    seen = torch.rand(where, generator=torch.Generator().manual_seed(1)) < 0.8
    assert_agrees(random(4, 5, 6), device, policy=POLICIES[name], axis=axis, where=seen)


@one_of_each_kind
def test_any_strides(name, device):
    policy = POLICIES[name]
    logits = random(6, 8, 20)
    assert_agrees(logits[:, ::2, 3:17], device, policy=policy)  # rows apart, each contiguous
    assert_agrees(logits[..., ::2], device, policy=policy)
    assert_agrees(logits.permute(2, 0, 1), device, policy=policy)
    assert_agrees(logits[0, 0], device, policy=policy)
    assert_agrees(logits[:1, :1].expand(6, 8, 20), device, policy=policy)
    seen = random(20, 8, 6).permute(2, 1, 0) > -2
    assert_agrees(logits, device, policy=policy, where=seen)


def test_a_gradient_of_any_strides(device):
    leaf = random(4, 6).to(device).requires_grad_()
    weights = fused(leaf, PAPER)
    torch.testing.assert_close(weights.sum(1), torch.ones(4, device=device))
    (gradient,) = torch.autograd.grad(weights.sum(), leaf)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-6)


# Hard input

HARD_ROWS = {
    "constant": torch.full((2, 40), 7.0),
    "one huge": torch.where(torch.arange(40) == 4, 1e4, random(2, 40)),
    "all huge": random(2, 40) + 1e4,
    "ties at the top": torch.tensor([3.0, 3, 3, 0, -1]).repeat(2, 8),
    "huge and hidden": torch.where(torch.arange(40) == 39, 1e4, -INF).repeat(2, 1),
    "widest": torch.tensor([-1.5e38, 0, 1.5e38, -1e38]).repeat(2, 10),
    "lowest": torch.tensor([-3e38, -3.1e38]).repeat(2, 20),
    "nothing": torch.full((2, 40), -INF),
}


@pytest.mark.parametrize("name", HARD_ROWS)
@pytest.mark.parametrize("policy", [Fixed(2.0), PAPER, MeanAndLse(0.3)], ids=type)
@pytest.mark.parametrize("streamed", [False, True])
def test_hard_rows(name, policy, streamed, request, device):
    if streamed:
        request.getfixturevalue("short_programs")
    ours = value_and_gradient(fused, HARD_ROWS[name].to(device), policy=policy)
    exact = value_and_gradient(composite, HARD_ROWS[name].to(device), policy=policy)
    for x, reference in zip(ours, exact, strict=True):
        torch.testing.assert_close(x, reference, rtol=1e-5, atol=1e-5)


@every_policy
@pytest.mark.parametrize("streamed", [False, True])
def test_a_fully_masked_row_is_zeros_with_zero_gradient(policy, streamed, request, device):
    if streamed:
        request.getfixturevalue("short_programs")
    logits = random(2, 2, 3, 40).to(device)
    logits[0, 1, 2] = -INF
    weights, gradient = value_and_gradient(fused, logits, policy=policy)
    assert (weights[0, 1, 2] == 0).all()
    assert (gradient[0, 1, 2] == 0).all()
    assert gradient.isfinite().all()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter
@every_policy
@pytest.mark.parametrize("streamed", [False, True])
def test_nan_stays_in_its_row_and_behind_the_mask(policy, streamed, request, device):
    if streamed:
        request.getfixturevalue("short_programs")
    logits = random(2, 2, 3, 40).to(device)
    expected = fused(logits, policy)
    logits[1, 0, 2, 3] = math.nan
    weights = fused(logits, policy)
    assert weights[1, 0, 2].isnan().all()
    assert weights.isnan().sum() == 40
    torch.testing.assert_close(weights[0], expected[0])
    assert fused(logits, policy, where=~logits.isnan()).isfinite().all()


def test_a_half_precisions_most_negative_number_is_hidden(device):
    logits = torch.tensor([-65504, -65472, -65472], dtype=torch.float16, device=device)
    weights = fused(logits, Fixed(0.05))
    assert weights.tolist() == [0, 0.5, 0.5]


# Gradients


def test_the_maximum_is_read_where_no_gradient_is_wanted(device):
    logits, policy = random(4, 9).to(device), LargestWeight(0.5)
    torch.testing.assert_close(fused(logits, policy), composite(logits, policy))


@pytest.mark.parametrize("streamed", [False, True])
def test_gradient_into_a_trained_policy(streamed, request, device):
    if streamed:
        request.getfixturevalue("short_programs")
    logits = random(2, 3, 70).to(device)
    gradients = []
    for softmax in (fused, composite):
        slope = torch.tensor([0.1, 0.4], device=device, requires_grad=True)
        beta = torch.tensor(1.5, requires_grad=True)
        by_head = softmax(logits, PerHead(LogLength(4, 0.0), {"slope": slope}))
        fixed = softmax(logits, Fixed(beta))
        gradients.append(torch.autograd.grad((by_head * fixed)[..., 0].sum(), (slope, beta)))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-7)


@every_policy
def test_second_derivatives(policy, device):
    logits = random(2, 3, 8).to(device)
    second = []
    for softmax in (fused, composite):
        leaf = logits.clone().requires_grad_()
        loss = softmax(leaf, policy)[..., 0].square().sum()
        (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
        second.append(torch.autograd.grad(first.square().sum(), leaf)[0])
    torch.testing.assert_close(second[0], second[1], rtol=1e-4, atol=1e-5)


# Refusals


def refused(logits: Tensor, policy: Policy = PAPER) -> bool:
    return fused_softmax(LogitRows.of(logits), policy) is None


def test_refuses_what_the_kernels_cannot_take(device):
    logits = random(3, 5).to(device)
    assert not refused(logits)
    assert refused(logits.double())
    assert refused(logits, EntropyCap(1.0))
    assert refused(logits[:0])
    assert refused(logits.clone().requires_grad_(), LargestWeight(0.5))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_refuses_where_a_transformation_looks_on(device):
    logits, seen = random(3, 5).to(device), []

    def spy(x: Tensor) -> Tensor:
        seen.append(refused(x))
        return composite(x, PAPER).sum()

    torch.func.vmap(spy)(logits)
    torch.func.grad(spy)(logits)
    torch.compile(spy, backend="eager")(logits)
    with torch.autograd.forward_ad.dual_level():
        spy(torch.autograd.forward_ad.make_dual(logits, logits))
    assert seen == [True] * 4


# Through sharpmax.softmax, on a GPU


@gpu
@every_policy
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [50, 1024, 8192, 20000, 32768, 50000])
def test_softmax_on_a_gpu(policy, dtype, length):
    logits = random(2, 2, 3, length, dtype=dtype).cuda()
    assert_agrees(logits, "cuda", policy=policy)
    weights = sharpmax.softmax(logits, policy)
    assert torch.equal(weights, fused(logits, policy))
    seen = torch.rand(3, length, device="cuda") < 0.5
    assert_agrees(logits, "cuda", policy=policy, where=seen)


@gpu
@every_policy
def test_compiles_and_maps_on_a_gpu(policy):
    torch._dynamo.reset()
    logits = random(3, 2, 5, 70).cuda()
    expected = sharpmax.softmax(logits, policy)
    compiled = torch.compile(lambda x: sharpmax.softmax(x, policy), fullgraph=True)
    torch.testing.assert_close(compiled(logits), expected)
    torch.testing.assert_close(
        torch.func.vmap(lambda x: sharpmax.softmax(x, policy))(logits), expected
    )


@gpu
def test_more_than_two_to_the_31_numbers():
    logits = torch.zeros(2**17 + 1, 2**14, dtype=torch.float16, device="cuda")
    logits[-1, -1] = 20
    weights = sharpmax.softmax(logits)
    assert weights[-1, -1] > 0.99
    assert (weights[-2] == weights[0]).all()
