"""The policies that are the same for all heads: fixed, by entropy, by length, to a cap."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sharpmax.arrays import Array, constant, is_array, is_numpy, namespace
from sharpmax.policy import Policy

if TYPE_CHECKING:
    from sharpmax.policy import LadderRows, Rows

Number = float | Array
"""A setting of a policy: a number, or inside `PerHead` an array that broadcasts to the rows."""

SINK = ("sink", "sink_by_length", "sink_below", "sink_above", "sink_log_power")
"""The settings of `LogLinear` that say what becomes of the sink."""
NARROWEST = 1e-6
"""Nats between two knots of `Interpolated`: less has no slope in single precision."""


def _require_numbers(policy: Policy, *names: str, above: float = -math.inf) -> None:
    """Raise an error that names the setting unless each is a finite number above `above`.

    Arrays pass as they are: they may be in training, or traced.
    """
    for name in names:
        object.__setattr__(policy, name, _require_number(name, getattr(policy, name), above))


def _require_number(name: str, value: Number, above: float = -math.inf) -> Number:
    if not isinstance(value, int | float) and is_numpy(value) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or not (isinstance(value, int | float) or is_array(value)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if isinstance(value, int | float) and not above < value < sys.float_info.max:
        limit = "" if above == -math.inf else f" above {above:g}"
        raise ValueError(f"{name} must be a finite number{limit}, got {value}")
    return value


def _is_zero(value: Number) -> bool:
    """Tell whether a setting is 0; an array may become anything."""
    return isinstance(value, int | float) and value == 0


def _exp_within(value: Number, most: Number, xp: Any) -> Number:
    """Return exp(value), but at least 1/most and at most most."""
    limit = math.log(most) if isinstance(most, int | float) else xp.log(most)
    if isinstance(value, int | float) and isinstance(limit, float):
        return math.exp(max(-limit, min(limit, value)))
    return xp.exp(xp.clip(value, -limit, limit))


def _require_base(base: object) -> None:
    if not isinstance(base, Policy):
        raise TypeError(f"base must be a policy, got {base!r}")


@dataclass(frozen=True)
class Fixed(Policy):
    """The same β for every row; β = 1 is plain softmax."""

    beta: Number = 1.0

    reads = frozenset[str]()

    def __post_init__(self) -> None:
        _require_numbers(self, "beta", above=0)

    def __call__(self, rows: Rows) -> Array | float:
        """Return β, whatever the rows."""
        del rows
        return self.beta


@dataclass(frozen=True)
class Polynomial(Policy):
    """β as a polynomial of the entropy H: the paper's adaptive temperature.

    β = max(poly(H), minimum) where H > threshold, else 1.

    Attributes:
        coefficients: Of the polynomial, highest power first.
        threshold: Rows of lower entropy (nats) are left alone: they are sharp enough.
        minimum: The least β; 1 means that entropy is never increased.
        beyond: What happens at entropies past `end`: "evaluate" the polynomial there too, as
            published, or "hold" its value at `end`.
        end: The entropy at which the fitted range ends; "hold" needs it.
    """

    coefficients: Sequence[Number]
    threshold: Number = 0.0
    minimum: Number = 1.0
    beyond: Literal["evaluate", "hold"] = "evaluate"
    end: Number | None = None

    reads = frozenset({"entropy"})

    def __post_init__(self) -> None:
        if isinstance(self.coefficients, str) or not isinstance(self.coefficients, Sequence):
            raise TypeError(f"coefficients must be a sequence, got {self.coefficients!r}")
        object.__setattr__(self, "coefficients", tuple(self.coefficients))
        if not self.coefficients:
            raise ValueError("coefficients must not be empty")
        for coefficient in self.coefficients:
            _require_number("coefficients", coefficient)
        _require_numbers(self, "threshold")
        _require_numbers(self, "minimum", above=0)
        if self.beyond not in ("evaluate", "hold"):
            raise ValueError(f'beyond must be "evaluate" or "hold", got {self.beyond!r}')
        if self.beyond == "hold" and self.end is None:
            raise ValueError('beyond="hold" needs end, the entropy from which to hold')
        if self.end is not None:
            _require_numbers(self, "end")

    def __call__(self, rows: Rows) -> Array:
        """Return the polynomial of the rows' entropy."""
        entropy = rows.entropy
        xp = namespace(entropy)
        hold = self.beyond == "hold"
        within = xp.where(entropy < self.end, entropy, self.end) if hold else entropy
        beta = xp.zeros_like(entropy)
        for coefficient in self.coefficients:
            beta = beta * within + coefficient
        beta = xp.where(beta > self.minimum, beta, self.minimum)
        return xp.where(entropy > self.threshold, beta, 1.0)


PAPER = Polynomial(coefficients=(-0.037, 0.481, -2.3, 4.917, -1.791), threshold=0.5)
"""The published adaptive temperature. It switches off above 5.945 nats of entropy."""

HELD = dataclasses.replace(PAPER, beyond="hold", end=4.4124)
"""`PAPER` up to its largest β, 2.42 at 4.41 nats, which it keeps at every higher entropy."""


@dataclass(frozen=True)
class LogLength(Policy):
    """β that grows with the logarithm of the length: 1 + slope·ln(n / reference_length).

    Up to the reference length β is 1. A slope of 1/δ keeps the weight that Lemma 2.1 grants
    a row of logit spread δ; a slope of 1/ln(reference_length) makes β = ln n / ln n₀.
    """

    reference_length: Number
    slope: Number

    reads = frozenset({"length"})

    def __post_init__(self) -> None:
        _require_numbers(self, "reference_length", above=0)
        _require_numbers(self, "slope")

    def __call__(self, rows: Rows) -> Array:
        """Return β from the rows' length."""
        growth = rows.length / self.reference_length
        xp = namespace(growth)
        return 1.0 + self.slope * xp.log(xp.where(growth > 1, growth, 1.0))


@dataclass(frozen=True)
class LogLinear(Policy):
    """β whose logarithm is linear in that of the length, and in what the entropy is out of a band.

    ln β = offset + by_length·max(0, ln(n / reference_length))
           + below·max(0, low − E) + above·max(0, E − high),    E = H − drift·ln n,

    kept within ±ln(most). With `sink_apart`, all this is of the keys but the first, the row's sink:
    E and n are theirs, and β acts among them. The sink's odds against them, o in plain attention,
    become

    ln o′ = exp(sink_log_power)·ln o + γ,
    γ = sink + sink_by_length·max(0, ln(n / reference_length))
        + sink_below·max(0, low − E) + sink_above·max(0, E − high),

    γ kept within ±most and the power within 1/most and most. With these numbers at 0 the sink has
    the weight that it has in plain attention, whatever β is.

    The band from `low` to `high` is meant to hold the entropies that a head
    has on ordinary text, `drift` being how they grow with the length there: what happens in it
    every day stays as it is. Without a band β reads the length alone, and costs no
    statistics unless the sink stands apart. `calibrate` fits this policy head by head.
    """

    reference_length: Number
    offset: Number = 0.0
    by_length: Number = 0.0
    most: Number = 8.0
    low: Number | None = None
    high: Number | None = None
    drift: Number = 0.0
    below: Number = 0.0
    above: Number = 0.0
    sink_apart: bool = False
    sink: Number = 0.0
    sink_by_length: Number = 0.0
    sink_below: Number = 0.0
    sink_above: Number = 0.0
    sink_log_power: Number = 0.0

    def __post_init__(self) -> None:
        _require_numbers(self, "reference_length", above=0)
        _require_numbers(self, "offset", "by_length", "drift", "below", "above")
        _require_numbers(self, *SINK)
        _require_numbers(self, "most", above=1)
        if (self.low is None) != (self.high is None):
            raise ValueError("low and high make a band together: give both, or neither")
        if self.low is not None:
            _require_numbers(self, "low", "high")
        if not isinstance(self.sink_apart, bool):
            raise TypeError(f"sink_apart must be True or False, got {self.sink_apart!r}")
        if not self.sink_apart and not all(_is_zero(getattr(self, name)) for name in SINK):
            raise ValueError(f"{', '.join(SINK)} are for sink_apart=True, got False")

    @property
    def reads(self) -> frozenset[str]:
        """The length, and the entropy where there is a band."""
        return frozenset({"length"} if self.low is None else {"length", "entropy"})

    def __call__(self, rows: Rows) -> Array:
        """Return β from the rows' length, and their entropy."""
        log_beta = self._linear(rows, self.offset, self.by_length, self.below, self.above)
        return _exp_within(log_beta, self.most, namespace(log_beta))

    @property
    def sets_sink_apart(self) -> bool:
        """Whether the sink stands apart, and anything is done to any key."""
        numbers = "offset", "by_length", "below", "above", *SINK
        return self.sink_apart and not all(_is_zero(getattr(self, name)) for name in numbers)

    def sink_log_odds(self, rows: Rows, log_odds: Array) -> Array:
        """Return the logarithm of the sink's odds from what it is in plain attention."""
        slopes = self.sink_by_length, self.sink_below, self.sink_above
        shift = self._linear(rows, self.sink, *slopes)
        xp = namespace(shift)
        power = _exp_within(self.sink_log_power, self.most, xp)
        return power * log_odds + xp.clip(shift, -self.most, self.most)

    def _linear(
        self, rows: Rows, offset: Number, by_length: Number, below: Number, above: Number
    ) -> Array:
        """Return what is linear in max(0, ln(n / reference_length)) and in E out of its band."""
        length = rows.length
        growth = length / self.reference_length
        xp = namespace(growth)
        value = offset + by_length * xp.log(xp.clip(growth, min=1.0))
        if self.low is not None:
            entropy = rows.entropy - self.drift * xp.log(xp.clip(length, min=1.0))
            value = value + below * xp.clip(self.low - entropy, min=0.0)
            value = value + above * xp.clip(entropy - self.high, min=0.0)
        return value


@dataclass(frozen=True)
class EntropyCap(Policy):
    """The smallest β ≥ 1 that brings the row's entropy to at most `nats`.

    Entropy falls as β grows (Proposition 3.2), so that β is a monotone root, found by
    Newton's method on ln H, safeguarded by bisection. Its gradient is that of the implicit
    function theorem. Where the top logits are so close together, or equal, that the entropy
    stays above the cap up to β = `maximum`, β is that. Finding the root takes some fifteen
    passes over rows that are at hand. Rows that are made anew for every pass, as attention's
    on a GPU, tell their entropies at β = 1, 2, 4, 8 and 16 in one, and four in all suffice for an
    entropy within 1 % of the cap.
    """

    nats: Number
    maximum: Number = 2.0**16

    reads = frozenset({"entropy_at", "detached"})

    steps: ClassVar[int] = 12
    """Ten bring every kind of row that was tried to float64's last digits."""

    def __post_init__(self) -> None:
        _require_numbers(self, "nats", above=0)
        _require_numbers(self, "maximum", above=1)

    def __call__(self, rows: Rows) -> Array:
        """Return the root β of H(β) = nats, or 1 where the entropy is low enough already."""
        constants = rows.detached()
        climbs = hasattr(constants, "ladder")
        start = self._climb(constants) if climbs else self._start(constants)  # type: ignore[arg-type]
        plain, least, low, high, beta = start
        xp = namespace(plain)
        flat = 2.0**20 * float(xp.finfo(plain.dtype).smallest_normal)  # over less, steps overflow
        for _ in range(2 if climbs else self.steps):
            entropy, slope = constants.entropy_at(beta)
            low = xp.where(entropy > self.nats, beta, low)
            high = xp.where(entropy > self.nats, high, beta)
            falling = (entropy > 0) & (slope < -flat)
            log_excess = xp.log(xp.where(falling, entropy, self.nats) / self.nats)
            newton = beta - log_excess * entropy / xp.where(falling, slope, -1.0)
            inside = falling & (newton >= low) & (newton <= high)
            beta = xp.where(inside, newton, xp.sqrt(low * high))
        # Newton's steps from the constant root: the value is the root again. The derivative of
        # the first is −(∂H/∂s)/(∂H/∂β), the implicit function theorem's; the second step makes
        # the second derivative right too.
        for _ in range(1 if climbs else 2):
            entropy, slope = rows.entropy_at(beta)
            step = (entropy - self.nats) / xp.where(slope < -flat, slope, -math.inf)
            beta = beta - xp.where(abs(step) < beta, step, 0.0)
        beta = xp.where(plain > self.nats, beta, 1.0)
        return xp.where(least > self.nats, self.maximum, beta)

    def _start(self, rows: Rows) -> tuple[Array, Array, Array, Array, Array]:
        """Return H at β = 1 and at the largest β, these two as a bracket, and a first guess."""
        plain, _ = rows.entropy_at(1.0)
        least, _ = rows.entropy_at(self.maximum)
        one = namespace(plain).ones_like(plain)
        return plain, least, one, one * self.maximum, one

    def _climb(self, rows: LadderRows) -> tuple[Array, Array, Array, Array, Array]:
        """Return the same from the entropies at β = 1, 2, 4, 8, 16, and further where need be.

        Between two rungs ln H is nearly linear in ln β: the guess is where that line meets the
        cap, and one step of Newton's from there.
        """
        entropies = rows.ladder()
        xp = namespace(entropies)
        plain = entropies[..., 0]
        low = xp.ones_like(plain)
        high = limit = low * self.maximum
        above, below = plain, xp.zeros_like(plain)
        found = plain <= self.nats
        first = 1.0
        while True:
            for rung in range(entropies.shape[-1]):
                beta, entropy = first * 2.0**rung, entropies[..., rung]
                reached = ~found & (beta <= limit) & (entropy <= self.nats)
                high, below = xp.where(reached, beta, high), xp.where(reached, entropy, below)
                found = found | reached
                climbing = ~found & (beta <= limit)
                low, above = xp.where(climbing, beta, low), xp.where(climbing, entropy, above)
            first = 2.0 * beta
            if not bool(xp.any(~found & (first <= limit))):
                break
            entropies = rows.ladder(first)
        if not bool(xp.all(found)):
            last, _ = rows.entropy_at(limit)
            below = xp.where(found, below, last)
        tiny = xp.finfo(plain.dtype).smallest_normal
        fall = xp.log(above / xp.where(below > tiny, below, tiny))
        share = xp.log(above / self.nats) / xp.where(fall > 0, fall, 1.0)
        guess = low * (high / low) ** xp.clip(share, 0.0, 1.0)
        return plain, below, low, high, guess


@dataclass(frozen=True)
class Interpolated(Policy):
    """β between knots of the entropy by straight lines, and held beyond the first and the last.

    Unlike a polynomial it does nothing where it was not fitted that it does not do at the edge.
    Rising betas give a β that never falls with the entropy.
    """

    entropies: Sequence[Number]
    betas: Sequence[Number]

    reads = frozenset({"entropy"})

    def __post_init__(self) -> None:
        for name in ("entropies", "betas"):
            knots = getattr(self, name)
            if isinstance(knots, str) or not isinstance(knots, Sequence):
                raise TypeError(f"{name} must be a sequence of numbers, got {knots!r}")
            if not knots:
                raise ValueError(f"{name} must not be empty")
            above = 0 if name == "betas" else -math.inf
            knots = tuple(_require_number(name, knot, above) for knot in knots)
            object.__setattr__(self, name, knots)
        if len(self.entropies) != len(self.betas):
            raise ValueError(
                f"entropies and betas must be as many, got {len(self.entropies)} and "
                f"{len(self.betas)}"
            )
        plain = [knot for knot in self.entropies if isinstance(knot, int | float)]
        if any(right - left < NARROWEST for left, right in itertools.pairwise(plain)):
            raise ValueError(
                f"entropies must rise by {NARROWEST} or more from knot to knot, got "
                f"{self.entropies}"
            )

    def __call__(self, rows: Rows) -> Array:
        """Return β on the line between the knots on either side of the entropy."""
        entropy = rows.entropy
        xp = namespace(entropy)
        beta = xp.zeros_like(entropy) + self.betas[0]
        knots = zip(self.entropies, self.betas, strict=True)
        for (left, low), (right, high) in itertools.pairwise(knots):
            along = xp.clip((entropy - left) / (right - left), 0.0, 1.0)
            beta = beta + along * (high - low)
        return beta


@dataclass(frozen=True)
class _Wrapped(Policy):
    """Another policy, of which something is changed."""

    base: Policy

    def __post_init__(self) -> None:
        _require_base(self.base)

    @property
    def reads(self) -> frozenset[str]:
        """What the base reads."""
        return self.base.reads

    def layer(self, index: int) -> Policy:
        """Return the policy of one layer."""
        base = self.base.layer(index)
        return self if base is self.base else type(self)(base)


@dataclass(frozen=True)
class ConstantRows(_Wrapped):
    """Another policy, to which what it reads of a row is constant.

    Its own numbers get their gradients. The logits get none through the statistics, only that of
    the sink's odds where it stands apart.
    """

    @property
    def reads(self) -> frozenset[str]:
        """What the base reads."""
        return self.base.reads | {"detached"}

    @property
    def sets_sink_apart(self) -> bool:
        """Whether the base does."""
        return self.base.sets_sink_apart

    def sink_log_odds(self, rows: Rows, log_odds: Array) -> Array:
        """Return what the base makes of the sink's odds."""
        return self.base.sink_log_odds(rows.detached(), log_odds)

    def __call__(self, rows: Rows) -> Array | float:
        """Return the base's β."""
        return self.base(rows.detached())


@dataclass(frozen=True)
class Detached(ConstantRows):
    """Another policy's β as a constant, through which no gradient flows.

    In training, the logits are then not drawn towards those that give another β, and the
    backward pass of attention costs hardly more than that of plain attention. Where the policy
    sets the sink apart, its odds keep the gradient of the logits, which costs that of the
    statistics, and what the policy does to them is not held constant.
    """

    def __call__(self, rows: Rows) -> Array | float:
        """Return the base's β as a constant."""
        beta = super().__call__(rows)
        return beta if isinstance(beta, int | float) else constant(beta)


@dataclass(frozen=True)
class BetaAlone(_Wrapped):
    """Another policy's β, for all keys of a row: no sink stands apart."""

    def __call__(self, rows: Rows) -> Array | float:
        """Return the base's β."""
        return self.base(rows)
