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
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INF = math.inf


@dataclass(frozen=True)
class ByTopShare(Policy):
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
one_of_each_kind = pytest.mark.parametrize("name", ["fixed", "paper", "mean", "length by head"])


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


def assert_agrees(logits: Tensor, **arguments: Any) -> None:
    """Value and gradient: within 1e-6, or twice as far from float64 as the composite form.

    Triton's interpreter rounds bfloat16 towards zero, which adds half a unit in the last place.
    """
    logits = logits.to(DEVICE)
    if arguments.get("where") is not None:
        arguments["where"] = arguments["where"].to(DEVICE)
    ours = value_and_gradient(fused, logits, **arguments)
    same = value_and_gradient(composite, logits, **arguments)
    exact = value_and_gradient(composite, logits.double(), **arguments)
    rounding = 2**-8 if logits.dtype == torch.bfloat16 and DEVICE == "cpu" else 0.0
    for x, reference, truth in zip(ours, same, exact, strict=True):
        assert x.dtype == logits.dtype
        assert x.shape == logits.shape
        limit = 2 * (reference.double() - truth).abs().max().item() + 1e-6
        torch.testing.assert_close(x.double(), truth, rtol=rounding, atol=limit)
    with torch.no_grad():
        torch.testing.assert_close(fused(logits, **arguments), ours[0], rtol=1e-4, atol=1e-7)


@pytest.fixture
def short_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that hold so little that even short rows are streamed."""
    monkeypatch.setattr("sharpmax.torch.kernels.softmax.HELD_NUMBERS", 64)


@pytest.fixture(params=["whole", "streamed"])
def whole_and_streamed(request: pytest.FixtureRequest) -> None:
    """Programs that hold their rows, then programs that do not."""
    if request.param == "streamed":
        request.getfixturevalue("short_programs")


# Agreement


@every_policy
def test_agrees_in_value_and_gradient(policy):
    assert_agrees(random(2, 2, 5, 37), policy=policy)


@one_of_each_kind
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_agrees_in_half_precision(name, dtype):
    assert_agrees(random(2, 2, 5, 37, dtype=dtype), policy=POLICIES[name])


@every_policy
def test_agrees_with_a_mask(policy):
    logits = random(2, 2, 5, 37)
    seen = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0))
    logits[seen < 0.2] = -INF
    logits[0, 0, :3, 5:] = torch.finfo(torch.float32).min
    logits[1, 1, 2] = -INF
    seen[1, 0, 1] = 0.0
    assert_agrees(logits, policy=policy, where=seen > 0.5)


@pytest.mark.usefixtures("short_programs")
@one_of_each_kind
@pytest.mark.parametrize("length", [33, 70])  # the former only with a gradient
def test_streams_rows_that_do_not_fit(name, length):
    logits = random(1, 2, 4, length)
    logits[0, 0, 1, :-9] = -INF
    logits[0, 1, 2] = logits[0, 1, 2].sort().values  # a new maximum in every block
    where = None if length == 33 else torch.arange(4 * 70).reshape(4, 70) % 210 > 5
    assert_agrees(logits, policy=POLICIES[name], where=where)


@pytest.mark.parametrize("length", [1, 2, 3, 16, 31, 64, 65, 1000, 1025, 3000])
def test_any_length(length):
    assert_agrees(random(3, length), policy=PAPER)


@pytest.mark.parametrize("where", [(6,), (5, 1), (4, 1, 6), (1, 5, 6), (4, 5, 6), ()])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_any_axis_and_any_mask_that_broadcasts(where, axis):
    seen = torch.rand(where, generator=torch.Generator().manual_seed(1)) < 0.8
    assert_agrees(random(4, 5, 6), policy=PAPER, axis=axis, where=seen)


STRIDED = {
    "rows apart": random(6, 8, 20)[:, ::2, 3:17],
    "numbers apart": random(6, 8, 20)[..., ::2],
    "permuted": random(20, 6, 8).permute(1, 2, 0),
    "one row": random(20),
    "the same row": random(1, 1, 20).expand(6, 8, 20),
}


@pytest.mark.parametrize("logits", STRIDED.values(), ids=STRIDED.keys())
def test_any_strides(logits):
    assert_agrees(logits, policy=PAPER)


def test_any_strides_of_the_mask():
    seen = random(20, 8, 6).permute(2, 1, 0) > -2
    assert_agrees(random(6, 8, 20), policy=PAPER, where=seen)


def test_a_gradient_of_any_strides():
    leaf = random(4, 6).to(DEVICE).requires_grad_()
    weights = fused(leaf, PAPER)
    torch.testing.assert_close(weights.sum(1), torch.ones(4, device=DEVICE))
    (gradient,) = torch.autograd.grad(weights.sum(), leaf)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-6)


# Hard input

HARD_ROWS = {
    "constant": torch.full((40,), 7.0),
    "one huge": torch.where(torch.arange(40) == 4, 1e4, random(40)),
    "all huge": random(40) + 1e4,
    "ties at the top": torch.tensor([3.0, 3, 3, 0, -1]).repeat(8),
    "huge and hidden": torch.where(torch.arange(40) == 39, 1e4, -INF),
    "widest": torch.tensor([-1.5e38, 0, 1.5e38, -1e38]).repeat(10),
    "lowest": torch.tensor([-3e38, -3.1e38]).repeat(20),
    "nothing": torch.full((40,), -INF),
}


@pytest.mark.usefixtures("whole_and_streamed")
@pytest.mark.parametrize("policy", [Fixed(2.0), PAPER, MeanAndLse(0.3)], ids=repr)
def test_hard_rows(policy):
    logits = torch.stack(list(HARD_ROWS.values())).to(DEVICE)
    ours = value_and_gradient(fused, logits, policy=policy)
    expected = value_and_gradient(composite, logits, policy=policy)
    for x, reference in zip(ours, expected, strict=True):
        for row, reference_row, name in zip(x, reference, HARD_ROWS, strict=True):
            torch.testing.assert_close(
                row, reference_row, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.usefixtures("whole_and_streamed")
@one_of_each_kind
def test_a_fully_masked_row_is_zeros_with_zero_gradient(name):
    logits = random(2, 2, 3, 40).to(DEVICE)
    logits[0, 1, 2] = -INF
    weights, gradient = value_and_gradient(fused, logits, policy=POLICIES[name])
    assert (weights[0, 1, 2] == 0).all()
    assert (gradient[0, 1, 2] == 0).all()
    assert gradient.isfinite().all()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter
@pytest.mark.usefixtures("whole_and_streamed")
@one_of_each_kind
def test_nan_stays_in_its_row_and_behind_the_mask(name):
    logits, policy = random(1, 2, 3, 40).to(DEVICE), POLICIES[name]
    logits[0, 1, 2, 3] = math.nan
    weights = fused(logits, policy)
    assert weights[0, 1, 2].isnan().all()
    assert weights.isnan().sum() == 40
    assert fused(logits, policy, where=~logits.isnan()).isfinite().all()


def test_a_half_precisions_most_negative_number_is_hidden():
    logits = torch.tensor([-65504, -65472, -65472], dtype=torch.float16, device=DEVICE)
    weights = fused(logits, Fixed(0.05))
    assert weights.tolist() == [0, 0.5, 0.5]


# Gradients


def test_the_maximum_is_read_where_no_gradient_is_wanted():
    logits, policy = random(4, 9).to(DEVICE), ByTopShare(0.5)
    torch.testing.assert_close(fused(logits, policy), composite(logits, policy))


@pytest.mark.usefixtures("whole_and_streamed")
def test_gradient_into_a_trained_policy():
    logits = random(2, 3, 70).to(DEVICE)
    gradients = []
    for softmax in (fused, composite):
        slope = torch.tensor([0.1, 0.4], device=DEVICE, requires_grad=True)
        beta = torch.tensor(1.5, requires_grad=True)
        by_head = softmax(logits, PerHead(LogLength(4, 0.0), {"slope": slope}))
        fixed = softmax(logits, Fixed(beta))
        gradients.append(torch.autograd.grad((by_head * fixed)[..., 0].sum(), (slope, beta)))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-7)


@one_of_each_kind
def test_second_derivatives(name):
    policy = POLICIES[name]
    logits = random(3, 2, 4, 8).to(DEVICE)
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


def test_refuses_what_the_kernels_cannot_take():
    logits = random(3, 5).to(DEVICE)
    assert not refused(logits)
    assert refused(logits.double())
    assert refused(logits, EntropyCap(1.0))
    assert refused(logits[:0])
    assert refused(logits.clone().requires_grad_(), ByTopShare(0.5))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_refuses_where_a_transformation_looks_on():
    logits, seen = random(3, 5).to(DEVICE), []

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
@one_of_each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [1000, 8192, 20000, 50257])
def test_softmax_on_a_gpu(name, dtype, length):
    logits, policy = random(2, 2, 3, length, dtype=dtype).cuda(), POLICIES[name]
    assert_agrees(logits, policy=policy, where=torch.arange(length) % 7 > 1)
    assert torch.equal(sharpmax.softmax(logits, policy), fused(logits, policy))


@gpu
@one_of_each_kind
def test_compiles_and_maps_on_a_gpu(name):
    torch._dynamo.reset()
    policy = POLICIES[name]
    logits = random(3, 2, 5, 70).cuda()
    expected = sharpmax.softmax(logits, policy)
    # PyTorch 2.11's tracer cannot make a policy of frozen settings, as `PerHead` does.
    if not isinstance(policy, PerHead) or torch.__version__ >= "2.13":
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
