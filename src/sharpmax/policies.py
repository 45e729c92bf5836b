"""The policies that are the same for all heads: fixed, by entropy, by length, to a cap."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sharpmax.arrays import Array, constant, is_array, namespace
from sharpmax.policy import Policy

if TYPE_CHECKING:
    from sharpmax.policy import Rows

Number = float | Array
"""A setting of a policy: a number, or inside `PerHead` an array that broadcasts to the rows."""


def _require_numbers(above: float = -math.inf, **settings: Number) -> None:
    """Raise an error that names the setting unless each is a finite number above `above`."""
    for name, value in settings.items():
        if isinstance(value, int | float):
            if not above < value < math.inf:
                limit = "" if above == -math.inf else f" above {above:g}"
                raise ValueError(f"{name} must be a finite number{limit}, got {value}")
        elif not is_array(value):
            raise TypeError(f"{name} must be a number, got {value!r}")


@dataclass(frozen=True)
class Fixed(Policy):
    """The same β for every row; β = 1 is plain softmax."""

    beta: Number = 1.0

    reads = frozenset[str]()

    def __post_init__(self) -> None:
        _require_numbers(above=0, beta=self.beta)

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
        object.__setattr__(self, "coefficients", tuple(self.coefficients))
        if not self.coefficients:
            raise ValueError("coefficients must not be empty")
        for coefficient in self.coefficients:
            _require_numbers(coefficients=coefficient)
        _require_numbers(threshold=self.threshold)
        _require_numbers(above=0, minimum=self.minimum)
        if self.beyond not in ("evaluate", "hold"):
            raise ValueError(f'beyond must be "evaluate" or "hold", got {self.beyond!r}')
        if self.beyond == "hold" and self.end is None:
            raise ValueError('beyond="hold" needs end, the entropy from which to hold')
        if self.end is not None:
            _require_numbers(end=self.end)

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
        _require_numbers(above=0, reference_length=self.reference_length)
        _require_numbers(slope=self.slope)

    def __call__(self, rows: Rows) -> Array:
        """Return β from the rows' length."""
        growth = rows.length / self.reference_length
        xp = namespace(growth)
        return 1.0 + self.slope * xp.log(xp.where(growth > 1, growth, 1.0))


@dataclass(frozen=True)
class EntropyCap(Policy):
    """The smallest β ≥ 1 that brings the row's entropy to at most `nats`.

    Entropy falls as β grows (Proposition 3.2), so that β is a monotone root, found by
    Newton's method on ln H, safeguarded by bisection. Its gradient is that of the implicit
    function theorem. Where ties at the top keep the entropy above the cap however large β,
    β is `maximum`.
    """

    nats: Number
    maximum: float = 2.0**16

    reads = frozenset({"entropy", "entropy_at"})

    steps: ClassVar[int] = 16
    """Ten bring every kind of row that was tried to float64's last digits."""

    def __post_init__(self) -> None:
        _require_numbers(above=0, nats=self.nats)
        _require_numbers(above=1, maximum=self.maximum)

    def __call__(self, rows: Rows) -> Array:
        """Return the root β of H(β) = nats, or 1 where the entropy is low enough already."""
        plain = constant(rows.entropy)
        least, _ = rows.entropy_at(self.maximum)
        xp = namespace(plain)
        low, high = xp.ones_like(plain), xp.full_like(plain, self.maximum)
        beta = low
        for _ in range(self.steps):
            entropy, slope = map(constant, rows.entropy_at(beta))
            low = xp.where(entropy > self.nats, beta, low)
            high = xp.where(entropy > self.nats, high, beta)
            curved = (entropy > 0) & (slope < 0)
            log_excess = xp.log(xp.where(curved, entropy, self.nats) / self.nats)
            newton = beta - log_excess * entropy / xp.where(curved, slope, -1.0)
            inside = curved & (newton >= low) & (newton <= high)
            beta = xp.where(inside, newton, xp.sqrt(low * high))
        # One Newton step from the constant root: its value is the root again, and its
        # derivative −(∂H/∂s)/(∂H/∂β) is the implicit function theorem's.
        entropy, slope = rows.entropy_at(beta)
        slope = constant(slope)
        step = (entropy - self.nats) / xp.where(slope < 0, slope, -math.inf)
        reached = beta - xp.where(abs(step) < beta, step, 0.0)
        beta = xp.where(plain > self.nats, reached, 1.0)
        return xp.where(least > self.nats, self.maximum, beta)
