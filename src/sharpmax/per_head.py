"""A policy that differs by head: models have heads that must stay blurred beside the others."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sharpmax.arrays import Array, array_like, is_numpy, namespace
from sharpmax.policy import Policy

if TYPE_CHECKING:
    from sharpmax.policy import Rows


@dataclass(frozen=True)
class PerHead(Policy):
    """Another policy with settings that differ by head, or by layer and head.

    The rows must be laid out as (…, heads, queries). For instance
    `PerHead(LogLength(256, 0.0), {"slope": [0.1, 0.3, 0.0]})` is for three heads.

    Attributes:
        base: The policy that every head follows, with the settings that they share.
        by_head: The other settings by name, each of shape (heads,) or (layers, heads). Of a
            setting that is a sequence, as a polynomial's coefficients, a sequence of such.
    """

    base: Policy
    by_head: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.base, Policy) or isinstance(self.base, PerHead):
            raise TypeError(f"base must be a policy that is not by head itself, got {self.base!r}")
        if not isinstance(self.by_head, Mapping):
            raise TypeError(f"by_head must be a dictionary, got {self.by_head!r}")
        known = {n: v for n, v in self.base.settings().items() if not isinstance(v, bool)}
        if not self.by_head or self.by_head.keys() - known.keys():
            raise ValueError(
                f"by_head must name settings of {type(self.base).__name__} "
                f"(one or more of {', '.join(known)}), got {list(self.by_head)}"
            )
        by_head = {name: _as_tuples(value) for name, value in self.by_head.items()}
        object.__setattr__(self, "by_head", by_head)
        shapes = {_shape(array) for array in self._arrays()}
        if len(shapes) != 1 or len(self.shape) not in (1, 2):
            raise ValueError(
                "by_head must hold arrays of one shape, (heads,) or (layers, heads), "
                f"got {sorted(shapes)}"
            )
        if all(isinstance(array, tuple) for array in self._arrays()):
            for head in itertools.product(*map(range, self.shape)):
                self._base_with(functools.partial(functools.reduce, operator.getitem, head))
        _ = self.sets_sink_apart  # which a compiler would find harder to tell

    def __hash__(self) -> int:
        return hash((self.base, tuple(sorted(self.by_head.items()))))

    @property
    def reads(self) -> frozenset[str]:
        """What the base reads, and the length, which tells how the rows are laid out."""
        return self.base.reads | {"length"}

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the settings: (heads,) or (layers, heads)."""
        return _shape(self._arrays()[0])

    def layer(self, index: int) -> Policy:
        """Return the policy of one layer."""
        if len(self.shape) == 1:
            return self
        if not 0 <= index < self.shape[0]:
            raise ValueError(f"layer must be from 0 to {self.shape[0] - 1}, got {index}")
        return PerHead(self.base, self._map(operator.itemgetter(index)))

    def with_arrays(self, convert: Callable[[Any], Array]) -> PerHead:
        """Return the same with each array converted, such as to tensors of a device."""
        return PerHead(self.base, self._map(convert))

    @functools.cached_property
    def sets_sink_apart(self) -> bool:
        """Whether the policy of any head may."""

        def of_head(head: tuple[int, ...], array: Any) -> Any:
            is_plain = isinstance(array, tuple)
            return functools.reduce(operator.getitem, head, array) if is_plain else array

        heads = itertools.product(*map(range, self.shape))
        return any(self._base_with(functools.partial(of_head, h)).sets_sink_apart for h in heads)

    def __call__(self, rows: Rows) -> Array | float:
        """Return the β that every head's own policy chooses."""
        return self._of(rows)(rows)

    def sink_log_odds(self, rows: Rows, log_odds: Array) -> Array:
        """Return what every head's own policy makes of the sink's odds."""
        return self._of(rows).sink_log_odds(rows, log_odds)

    def _of(self, rows: Rows) -> Policy:
        """Return the base with settings that broadcast to the rows."""
        if len(self.shape) == 2:
            raise ValueError("this policy differs by layer: choose one with .layer(index)")
        length, heads = rows.length, self.shape[0]
        if length.ndim < 2 or length.shape[-2] != heads:
            raise ValueError(
                f"a policy for {heads} heads needs rows of shape (…, {heads}, queries), "
                f"got {tuple(length.shape)}"
            )

        def column(array: Array) -> Array:
            shape = (1,) * (length.ndim - 2) + (heads, 1)
            return namespace(length).reshape(array_like(array, length), shape)

        return self._base_with(column)

    def _arrays(self) -> list[Array]:
        return [
            array
            for name, value in self.by_head.items()
            for array in (value if self._is_sequence(name) else [value])
        ]

    def _map(self, function: Callable[[Array], Any]) -> dict[str, Any]:
        """Apply a function to every array of `by_head`."""
        return {
            name: tuple(map(function, value)) if self._is_sequence(name) else function(value)
            for name, value in self.by_head.items()
        }

    def _base_with(self, function: Callable[[Array], Any]) -> Policy:
        """Return the base with its settings by head put in, each through `function`."""
        return type(self.base)(**self.base.settings() | self._map(function))

    def _is_sequence(self, name: str) -> bool:
        return isinstance(getattr(self.base, name), tuple)


def _as_tuples(value: Any) -> Any:
    """Return nested sequences and NumPy arrays as tuples; other arrays may be in training."""
    if is_numpy(value):
        value = value.tolist()
    return tuple(map(_as_tuples, value)) if isinstance(value, list | tuple) else value


def _shape(array: Array) -> tuple[int, ...]:
    """Return the shape of an array or of nested tuples."""
    if isinstance(array, str):
        raise TypeError(f"by_head must hold numbers, got {array!r}")
    if not isinstance(array, tuple):
        return tuple(getattr(array, "shape", ()))
    shapes = {_shape(item) for item in array}
    if len(shapes) != 1:
        sizes = ", ".join(sorted({str(shape) for shape in shapes})) or "none"
        raise ValueError(f"by_head must hold arrays of one shape, got parts of shapes {sizes}")
    return (len(array), *shapes.pop())
