"""The policies: their values, what they read, and their trip through JSON."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sharpmax import (
    HELD,
    PAPER,
    Detached,
    EntropyCap,
    Fixed,
    Interpolated,
    LogLength,
    LogLinear,
    PerHead,
    Policy,
    Polynomial,
    RowStatistics,
    softmax,
)
from sharpmax.policies import ConstantRows
from sharpmax.rows import LogitRows

POLICIES = [
    Detached(PAPER),
    ConstantRows(PAPER),
    Fixed(2.0),
    PAPER,
    HELD,
    LogLength(16, 0.2),
    LogLinear(16, offset=0.1, by_length=0.3),
    LogLinear(16, 0.1, 0.3, low=0.5, high=2.0, drift=0.2, below=-0.4, above=0.6),
    LogLinear(16, 0.1, low=0.5, high=2.0, sink_apart=True, sink_above=0.6, sink_log_power=0.2),
    EntropyCap(0.5),
    Interpolated((0.5, 2.0, 4.0), (1.0, 1.5, 3.0)),
    PerHead(Fixed(1.0), {"beta": [1.0, 2.0]}),
    PerHead(LogLength(16, 0.0), {"slope": [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]}),
    PerHead(PAPER, {"coefficients": [[0.1, 0.2], [1.0, 1.1]], "threshold": [0.3, 0.4]}),
]


def with_entropy(*entropies: float) -> RowStatistics:
    entropy = np.array(entropies)
    return RowStatistics(entropy, entropy, entropy, entropy)


def with_length(*lengths: float) -> RowStatistics:
    return with_entropy(*lengths)


@dataclass
class Watched:
    """Rows that note what is read of them."""

    rows: LogitRows
    read: set[str]

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.rows, name)
        self.read.add(name)
        return value

    def detached(self) -> "Watched":
        self.read.add("detached")
        return self


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: str(POLICIES.index(policy)))
class TestEveryPolicy:
    """What holds for all of them."""

    def test_survives_json(self, policy):
        assert Policy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy

    def test_survives_a_file(self, policy, tmp_path):
        policy.save(tmp_path / "policy.json")
        assert Policy.load(tmp_path / "policy.json") == policy

    def test_is_hashable_and_frozen(self, policy):
        assert len({policy, Policy.from_dict(policy.to_dict())}) == 1
        with pytest.raises(AttributeError):
            policy.anything = 1

    def test_reads_what_it_says(self, policy):
        rows = Watched(LogitRows.of(np.random.default_rng(0).normal(size=(2, 3, 9))), set())
        policy.layer(0)(rows)
        assert rows.read == policy.reads


@pytest.mark.parametrize(
    ("entropy", "beta"),
    [
        (0.3, 1.0),
        (0.5, 1.0),
        (0.8, 1.0),
        (1, 1.270),
        (2, 2.099),
        (3, 2.250),
        (4, 2.389),
        (5, 2.294),
    ],
)
def test_paper_at_known_entropies(entropy, beta):
    assert PAPER(with_entropy(entropy)) == pytest.approx(beta, abs=1e-9)


def test_paper_switches_off_at_high_entropy_and_held_does_not():
    beyond = with_entropy(5.95, 8.0, 12.0)
    np.testing.assert_array_equal(PAPER(beyond), 1.0)
    np.testing.assert_allclose(HELD(beyond), 2.4214, atol=1e-4)
    entropies = np.linspace(0, HELD.end, 50)
    np.testing.assert_array_equal(HELD(with_entropy(*entropies)), PAPER(with_entropy(*entropies)))


def test_held_from_the_polynomials_last_maximum():
    slope = np.polyval(np.polyder(PAPER.coefficients), HELD.end)
    assert slope == pytest.approx(0, abs=1e-4)


def test_log_length():
    policy = LogLength(reference_length=64, slope=0.5)
    lengths = with_length(0, 1, 64, 64 * np.e, 64 * np.e**2)
    np.testing.assert_allclose(policy(lengths), [1, 1, 1, 1.5, 2])


def test_log_linear_in_the_length():
    policy = LogLinear(reference_length=64, offset=0.1, by_length=0.5, most=4.0)
    lengths = with_length(0, 1, 64, 64 * np.e, 64 * np.e**9)
    np.testing.assert_allclose(policy(lengths), [*[np.exp(0.1)] * 3, np.exp(0.6), 4.0])
    assert policy.reads == {"length"}


def test_log_linear_out_of_a_band():
    policy = LogLinear(1e9, low=1.0, high=3.0, below=-0.5, above=2.0, drift=0.5)
    entropy, length = np.array([0.0, 1.0, 2.0, 3.0, 3.5]), np.full(5, np.e**2)
    rows = RowStatistics(entropy, entropy, entropy + 0.5 * 2, length)
    np.testing.assert_allclose(np.log(policy(rows)), [-0.5, 0, 0, 0, 1.0], atol=1e-12)
    assert policy.reads == {"length", "entropy"}
    assert not policy.sets_sink_apart


def test_a_sink_apart():
    band = {"low": 1.0, "high": 3.0, "sink_apart": True}
    policy = LogLinear(8, sink=0.1, sink_by_length=2.0, sink_below=0.5, sink_above=-1.0, **band)
    entropy, length = np.array([0.0, 2.0, 4.0, 99.0]), np.full(4, 8 * np.e)
    rows = RowStatistics(entropy, entropy, entropy, length)
    np.testing.assert_allclose(policy.sink_log_odds(rows, 3.0), [5.6, 5.1, 4.1, -5.0])
    np.testing.assert_allclose(policy(rows), 1.0)
    powerful = LogLinear(8, sink_log_power=0.5, **band)
    np.testing.assert_allclose(powerful.sink_log_odds(rows, entropy), np.exp(0.5) * entropy)
    most = LogLinear(8, sink_log_power=9.0, **band)
    np.testing.assert_allclose(most.sink_log_odds(rows, entropy), 8 * entropy)


def test_a_sink_stands_apart_only_where_anything_is_done():
    assert not LogLinear(8, sink_apart=True).sets_sink_apart
    assert not LogLinear(8, 0.5).sets_sink_apart
    for name in ("offset", "by_length", "above", "sink", "sink_below", "sink_log_power"):
        assert LogLinear(8, sink_apart=True, **{name: 0.1}).sets_sink_apart
    with pytest.raises(ValueError, match="sink_log_power are for sink_apart=True"):
        LogLinear(8, sink=1.0)
    with pytest.raises(TypeError, match="sink_apart must be True or False, got 1"):
        LogLinear(8, sink_apart=1)
    with pytest.raises(ValueError, match=r"by_head must name settings .* got \['sink_apart'\]"):
        PerHead(LogLinear(8), {"sink_apart": [True, False]})


@given(
    arrays(np.float64, st.integers(1, 12), elements=st.floats(-20, 20)),
    st.floats(0.05, 3),
)
def test_entropy_cap_is_met_by_the_smallest_beta(logits, nats):
    rows = LogitRows.of(logits)
    beta = EntropyCap(nats)(rows)
    plain, reached = rows.entropy, rows.entropy_at(beta)[0]
    if plain <= nats:
        assert beta == 1
    elif beta == EntropyCap(nats).maximum:
        assert rows.entropy_at(beta * (1 - 1e-9))[0] > nats - 1e-6
    else:
        assert reached == pytest.approx(nats, abs=1e-8)


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("length", [2, 30, 3000])
def test_entropy_cap_finds_roots_of_every_size(framework, scale, length):
    logits = framework.array(np.random.default_rng(length).normal(scale=scale, size=(20, length)))
    rows = LogitRows.of(logits)
    beta = EntropyCap(0.4, maximum=1e12)(rows)
    plain, reached = np.asarray(rows.entropy), np.asarray(rows.entropy_at(beta)[0])
    np.testing.assert_allclose(reached, np.minimum(plain, 0.4), atol=1e-9)


def test_entropy_cap_gives_up_at_its_maximum_on_ties():
    beta = EntropyCap(0.5, maximum=100.0)(LogitRows.of(np.array([[2.0, 2.0, 0.0], [2.0, 1.9, 0]])))
    assert beta[0] == 100
    assert 1 < beta[1] < 100


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_entropy_cap_takes_no_step_along_a_slope_that_has_all_but_gone(dtype):
    below = np.arange(20, 760, dtype=dtype)
    ties = np.stack([0 * below, 0 * below, -below], axis=-1)  # whose entropy stays above ln 2
    assert np.all(EntropyCap(0.5)(LogitRows.of(ties)) == EntropyCap(0.5).maximum)


def test_entropy_cap_needs_the_rows():
    with pytest.raises(TypeError, match="needs the rows themselves"):
        EntropyCap(0.5)(with_entropy(1.0))


def test_statistics_are_enough_for_the_others():
    logits = np.random.default_rng(1).normal(size=(2, 5, 40))
    statistics = RowStatistics.from_logits(logits)
    for policy in (Fixed(2.0), PAPER, HELD, LogLength(16, 0.2)):
        expected = policy(LogitRows.of(logits))
        np.testing.assert_allclose(policy(statistics), expected, rtol=1e-12)


# By head


def test_per_head_is_each_heads_own_policy(framework):
    logits = np.random.default_rng(2).normal(size=(2, 3, 4, 20))
    by_head = {"coefficients": [[c, 0.9 * c, 1.1 * c] for c in PAPER.coefficients]}
    weights = np.asarray(softmax(framework.array(logits), PerHead(PAPER, by_head)))
    for head, factor in enumerate([1, 0.9, 1.1]):
        policy = Polynomial([factor * c for c in PAPER.coefficients], threshold=0.5)
        np.testing.assert_allclose(weights[:, head], softmax(logits[:, head], policy), rtol=1e-10)


def test_a_layer_of_a_policy():
    slopes = np.array([[0.1, 0.2], [0.3, 0.4]])
    policy = PerHead(LogLength(16, 0.0), {"slope": slopes})
    assert policy.shape == (2, 2)
    assert policy.layer(1) == PerHead(LogLength(16, 0.0), {"slope": (0.3, 0.4)})
    assert policy.layer(1).layer(7) == policy.layer(1)
    assert PAPER.layer(3) is PAPER
    with pytest.raises(ValueError, match="layer must be from 0 to 1, got 2"):
        policy.layer(2)
    with pytest.raises(ValueError, match=r"differs by layer: choose one with .layer"):
        softmax(np.zeros((2, 3, 4)), policy)


def test_a_layer_of_trained_settings():
    slope = torch.zeros(3, 2, requires_grad=True)
    policy = PerHead(LogLength(16, 0.0), {"slope": slope}).layer(2)
    assert policy.shape == (2,)
    assert policy.by_head["slope"].requires_grad
    assert policy.to_dict()["by_head"] == {"slope": [0.0, 0.0]}


# Bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fixed(0.0), "beta must be a finite number above 0, got 0.0"),
        (lambda: Fixed(float("nan")), "beta must be a finite number above 0, got nan"),
        (lambda: Polynomial([]), "coefficients must not be empty"),
        (lambda: Polynomial([1.0], beyond="stop"), 'beyond must be "evaluate" or "hold"'),
        (lambda: Polynomial([1.0], beyond="hold"), 'beyond="hold" needs end'),
        (lambda: LogLength(0, 1.0), "reference_length must be a finite number above 0"),
        (lambda: LogLinear(0), "reference_length must be a finite number above 0"),
        (lambda: LogLinear(8, low=1.0), "low and high make a band together"),
        (lambda: LogLinear(8, most=1.0), "most must be a finite number above 1"),
        (lambda: EntropyCap(-1.0), "nats must be a finite number above 0"),
        (lambda: PerHead(Fixed(1.0), {}), "by_head must name settings of Fixed"),
        (lambda: PerHead(Fixed(1.0), {"slope": [1.0]}), r"one or more of beta\), got \['slope'\]"),
        (lambda: PerHead(Fixed(1.0), {"beta": 2.0}), r"\(heads,\) or \(layers, heads\)"),
        (lambda: PerHead(Fixed(1.0), {"beta": [[1.0], [1.0, 2.0]]}), "arrays of one shape"),
        (lambda: PerHead(Fixed(1.0), {"beta": [1.0, -1.0]}), "beta must be .* got -1.0"),
        (
            lambda: Policy.from_dict({"policy": "Sharp"}),
            "policy must be one of .*Fixed.* got 'Sharp'",
        ),
        (lambda: Policy.from_dict({}), "policy must be one of .* got None"),
        (lambda: Policy.from_dict({"policy": "Fixed", "b": 1}), "Fixed cannot be made from"),
        (lambda: Policy.from_dict({"policy": "Fixed", "beta": "two"}), "beta must be a number"),
        (lambda: Policy.from_dict({"policy": "Fixed", "beta": True}), "beta must be a number"),
        (lambda: Policy.from_dict({"policy": "Fixed", "beta": [1, 2]}), "beta must be a number"),
        (lambda: Policy.from_dict({"policy": "Fixed", "beta": 10**400}), "a finite number"),
        (lambda: Policy.from_dict({"policy": "Polynomial", "coefficients": "no"}), "a sequence"),
        (lambda: Policy.from_dict({"policy": "Polynomial", "coefficients": 3}), "a sequence"),
        (lambda: Policy.from_dict({"policy": ["Fixed"]}), "policy must be one of"),
        (
            lambda: Policy.from_dict({"policy": "PerHead", "base": None, "by_head": {}}),
            "base must be a policy",
        ),
        (
            lambda: Policy.from_dict(
                {"policy": "PerHead", "base": Fixed().to_dict(), "by_head": [1]}
            ),
            "by_head must be a dictionary",
        ),
        (lambda: PerHead(PAPER, {"coefficients": []}), "arrays of one shape"),
        (lambda: Fixed(np.float32(-1)), "beta must be a finite number above 0, got -1.0"),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"policy": "Sharp"}'])
def test_a_bad_file_is_named(tmp_path, text):
    path = tmp_path / "policy.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"policy\.json is not a policy file: "):
        Policy.load(path)


def test_per_head_refuses_what_is_not_a_number():
    with pytest.raises(TypeError, match="by_head must hold numbers, got 'hold'"):
        PerHead(HELD, {"beyond": ["hold", "hold"]})
    with pytest.raises(TypeError, match="not by head itself"):
        PerHead(PerHead(Fixed(1.0), {"beta": [1.0]}), {"by_head": [1.0]})


def test_a_policys_name_is_its_own():
    with pytest.raises(TypeError, match=r"there is a policy LogLength already, in sharpmax"):
        type("LogLength", (Policy,), {})


def test_a_policy_must_be_a_dataclass():
    class Bare(Policy):
        reads = frozenset()

        def __call__(self, rows):
            return rows.entropy

    with pytest.raises(TypeError, match="Bare must be a frozen dataclass"):
        Bare().to_dict()


def test_per_head_refuses_other_layouts():
    policy = PerHead(Fixed(1.0), {"beta": [1.0, 2.0]})
    with pytest.raises(ValueError, match=r"for 2 heads needs rows of shape .* got \(3, 5\)"):
        softmax(np.zeros((3, 5, 4)), policy)
    with pytest.raises(ValueError, match=r"for 2 heads needs rows of shape .* got \(3,\)"):
        softmax(np.zeros((3, 5)), policy)


@dataclass(frozen=True)
class ClimbedRows:
    """Rows that tell their entropies by rungs, as attention's do, and count their passes."""

    rows: LogitRows
    passes: list[str]

    def detached(self) -> "ClimbedRows":
        return self

    def ladder(self, beta: float = 1.0) -> Any:
        self.passes.append("ladder")
        rungs = [self.rows.entropy_at(beta * 2.0**rung)[0] for rung in range(5)]
        return np.stack(rungs, axis=-1)

    def entropy_at(self, beta: Any) -> Any:
        self.passes.append("entropy_at")
        return self.rows.entropy_at(beta)


@pytest.mark.parametrize("kind", ["plain", "needle", "ties"])
@pytest.mark.parametrize("nats", [0.1, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("spread", [0.3, 1.0, 10.0])
def test_the_ladder_brings_entropy_within_a_hundredth_of_the_cap(kind, nats, spread):
    logits = spread * np.random.default_rng(0).normal(size=(100, 3000))
    if kind == "needle":
        logits[:, 0] += 5 * spread
    if kind == "ties":
        logits[:, :3] = logits.max(axis=-1, keepdims=True)
    rows = ClimbedRows(LogitRows.of(logits), [])
    policy = EntropyCap(nats)
    beta = policy(rows)
    plain, _ = rows.rows.entropy_at(1.0)
    least, _ = rows.rows.entropy_at(policy.maximum)
    reached, _ = rows.rows.entropy_at(beta)
    free, stuck = plain <= nats, least > nats
    assert np.all(beta[free] == 1)
    assert np.all(beta[stuck] == policy.maximum)
    np.testing.assert_allclose(reached[~free & ~stuck], nats, rtol=0.01)
    assert rows.passes.count("entropy_at") == 3 + stuck.any()
    if not stuck.any() and beta.max() <= 16:
        assert rows.passes.count("ladder") == 1


def test_detached_is_the_same_beta_without_a_gradient():
    logits = torch.randn(4, 30, dtype=torch.float64, requires_grad=True)
    rows = LogitRows.of(logits)
    assert torch.equal(Detached(PAPER)(rows), PAPER(rows))
    assert not Detached(PAPER)(rows).requires_grad
    assert Detached(Fixed(2.0))(rows) == 2.0
    by_layer = PerHead(Fixed(1.0), {"beta": [[1.0, 2.0], [3.0, 4.0]]})
    assert Detached(by_layer).layer(1) == Detached(by_layer.layer(1))
    with pytest.raises(TypeError, match="base must be a policy"):
        Detached(2.0)


def test_to_constant_rows_a_policy_has_the_gradient_of_its_numbers_alone():
    logits = torch.randn(4, 5, 30, dtype=torch.float64, requires_grad=True)
    slope = torch.tensor([0.3] * 4, dtype=torch.float64, requires_grad=True)
    base = PerHead(LogLinear(8, low=0.5, high=1.0), {"above": slope})
    rows = LogitRows.of(logits)
    beta = ConstantRows(base)(rows)
    assert torch.equal(beta, base(rows))
    by_slope, by_logits = torch.autograd.grad(beta.sum(), (slope, logits), allow_unused=True)
    assert by_logits is None
    assert bool((by_slope != 0).all())
    by_layer = PerHead(Fixed(1.0), {"beta": [[1.0, 2.0], [3.0, 4.0]]})
    assert ConstantRows(by_layer).layer(1) == ConstantRows(by_layer.layer(1))
    with pytest.raises(TypeError, match="base must be a policy"):
        ConstantRows(2.0)


@pytest.mark.parametrize("maximum", [3.0, 16.0, 100.0])
def test_the_ladder_stops_at_the_largest_beta(maximum):
    logits = np.random.default_rng(1).normal(size=(50, 300))
    rows = LogitRows.of(logits)
    policy = EntropyCap(0.9, maximum=maximum)
    np.testing.assert_allclose(policy(ClimbedRows(rows, [])), policy(rows), rtol=0.02)


def test_the_ladder_by_head():
    logits = torch.randn(2, 3, 5, 300, dtype=torch.float64, generator=torch.Generator())
    rows = LogitRows.of(logits)
    settings = {"nats": [0.5, 1.0, 2.0], "maximum": [4.0, 64.0, 1000.0]}

    class Climbed(ClimbedRows):
        length = rows.length

        def ladder(self, beta: float = 1.0) -> Any:
            return torch.stack([rows.entropy_at(beta * 2.0**rung)[0] for rung in range(5)], -1)

    policy = PerHead(EntropyCap(1.0), settings)
    torch.testing.assert_close(policy(Climbed(rows, [])), policy(rows), rtol=0.02, atol=0.0)


def test_interpolated_follows_its_knots_and_holds_beyond():
    policy = Interpolated((1.0, 2.0, 4.0), (1.0, 2.0, 2.5))
    betas = policy(with_entropy(0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 9.0))
    np.testing.assert_allclose(betas, [1.0, 1.0, 1.5, 2.0, 2.25, 2.5, 2.5])


@pytest.mark.parametrize(
    ("entropies", "betas", "message"),
    [
        ((1.0, 1.0), (1.0, 2.0), "entropies must rise"),
        ((0.0, 1e-41), (1.0, 1.0), "entropies must rise by 1e-06"),
        ((1.0, 2.0), (1.0,), "must be as many"),
        ((1.0,), (0.0,), "betas must be a finite number above 0"),
    ],
)
def test_knots_that_do_not_fit(entropies, betas, message):
    with pytest.raises(ValueError, match=message):
        Interpolated(entropies, betas)


def test_numbers_by_head_take_one_line_in_a_file(tmp_path):
    policy = PerHead(LogLength(16, 0.0), {"slope": [[0.1, -2e-05], [0.3, 0.4]]})
    policy.save(tmp_path / "policy.json", about={"model": "a [1, 2] model"})
    text = (tmp_path / "policy.json").read_text()
    assert "[ 0.1, -2e-05 ]" in text
    assert "a [1, 2] model" in text
    assert Policy.load(tmp_path / "policy.json") == policy
