"""The interface of a policy: how sharp a row should be, given what is known of it.

A policy is a function from a row's statistics to its inverse temperature β = 1/θ. It knows
nothing of frameworks or kernels. To add one, write a frozen dataclass that derives from
`Policy`, names in `reads` what it looks at, and computes β in `__call__`; saving, loading,
`PerHead` and everything that takes a policy then work by themselves.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol

from sharpmax.arrays import Array, is_array

ABOUT = "about"
"""Under which name a policy's file tells what is no setting of the policy."""
NUMBERS = re.compile(r"\[[-+.\deE,\s]+\]")
"""A list of numbers in JSON, which is written on one line."""
POLICY_FILE = "sharpmax.json"
"""The name of the policy in a folder: that of a model, say."""


class Rows(Protocol):
    """What a policy may look at; every array has one entry a row.

    `RowStatistics` offers what can be told without the rows themselves.
    """

    @property
    def max(self) -> Array:
        """The largest logit."""

    @property
    def lse(self) -> Array:
        """The log-sum-exp of the logits."""

    @property
    def mean(self) -> Array:
        """The mean logit under the row's softmax."""

    @property
    def entropy(self) -> Array:
        """The entropy of the row's softmax, in nats."""

    @property
    def length(self) -> Array:
        """How many logits are visible."""

    def entropy_at(self, beta: Array | float) -> tuple[Array, Array]:
        """Return the entropy of softmax(β·s) and its derivative by β."""

    def detached(self) -> Rows:
        """Return the same rows as constants, which no gradient flows through."""


class LadderRows(Rows, Protocol):
    """Rows that are made anew for every question: they answer several at once."""

    def ladder(self, beta: Array | float = 1.0) -> Array:
        """Return the entropies at β, 2β, 4β, …, along a last axis."""


@dataclass(frozen=True)
class Policy(ABC):
    """Chooses the inverse temperature β of every row from what it reads of the rows."""

    _kinds: ClassVar[dict[str, type[Policy]]] = {}

    def __init_subclass__(cls) -> None:
        if cls.__name__.startswith("_"):  # for no file
            return
        known = Policy._kinds.setdefault(cls.__name__, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"there is a policy {cls.__name__} already, in {known.__module__}")
        Policy._kinds[cls.__name__] = cls

    @property
    @abstractmethod
    def reads(self) -> frozenset[str]:
        """The attributes of `Rows` that it looks at; a policy that reads less costs less."""

    @abstractmethod
    def __call__(self, rows: Rows) -> Array | float:
        """Return β for every row: a number, or an array that broadcasts to one entry a row."""

    @property
    def sets_sink_apart(self) -> bool:
        """Whether a row's first key, its sink, stands apart; most policies do not do that.

        The rows that such a policy looks at are those of the other keys, and β acts among these.
        What share the sink has beside them is told by `sink_log_odds`.
        """
        return False

    def sink_log_odds(self, rows: Rows, log_odds: Array) -> Array:
        """Return the logarithm of the sink's odds against all other keys together.

        Args:
            rows: The other keys.
            log_odds: What it is in plain attention: the sink's logit less the others' log-sum-exp.
        """
        del rows
        return log_odds

    def layer(self, index: int) -> Policy:
        """Return the policy of one layer of a model; most are the same in all."""
        del index
        return self

    def settings(self) -> dict[str, Any]:
        """Return the arguments that the policy was made with, by name."""
        if "__dataclass_fields__" not in vars(type(self)):
            raise TypeError(f"{type(self).__name__} must be a frozen dataclass")
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as numbers, strings, lists and dictionaries, ready for JSON."""
        return {"policy": type(self).__name__, **_to_plain(self.settings())}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Policy:
        """Return the policy that `to_dict` described."""
        settings = dict(data)
        kind = settings.pop("policy", None)
        if not isinstance(kind, str) or kind not in Policy._kinds:
            known = ", ".join(sorted(Policy._kinds))
            raise ValueError(f"policy must be one of {known}, got {kind!r}")
        try:
            return Policy._kinds[kind](**_from_plain(settings))
        except TypeError as error:
            names = ", ".join(settings) or "nothing"
            raise ValueError(f"{kind} cannot be made from {names}: {error}") from None

    def save(self, path: str | Path, about: Mapping[str, Any] | None = None) -> None:
        """Write the policy to a JSON file; into a folder, as `sharpmax.json`.

        Args:
            path: Of the file or the folder.
            about: What else to tell a reader of the file: where the policy comes from, and so on.
        """
        data = self.to_dict() | ({} if about is None else {ABOUT: _to_plain(about)})
        text = json.dumps(data, indent=2) + "\n"
        text = NUMBERS.sub(lambda numbers: " ".join(numbers[0].split()), text)
        policy_file(path).write_text(text, encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> Policy:
        """Read a policy from a JSON file, or from a folder with a `sharpmax.json`.

        Raises:
            ValueError: If the file holds no policy.
        """
        path = policy_file(path)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(data, dict):
                raise ValueError("it holds no JSON object")
            data.pop(ABOUT, None)
            return Policy.from_dict(data)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not a policy file: {error}") from None


def policy_file(path: str | Path) -> Path:
    """Return the policy's file: the one given, or the one in the folder that is given."""
    path = Path(path)
    return path / POLICY_FILE if path.is_dir() else path


def require_policy(policy: object) -> None:
    """Raise a TypeError unless `policy` is a policy."""
    if not isinstance(policy, Policy):
        raise TypeError(
            "policy must be a sharpmax.Policy such as sharpmax.PAPER or sharpmax.Fixed(2.0), "
            f"got {policy!r}"
        )


def _to_plain(value: Any) -> Any:
    """Return `value` in JSON's terms."""
    if isinstance(value, Policy):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {name: _to_plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_to_plain(item) for item in value]
    return value.tolist() if is_array(value) else value


def _from_plain(value: Any) -> Any:
    """Undo `_to_plain`: a dictionary that names a policy is one, a list was a tuple."""
    if isinstance(value, Mapping):
        if "policy" in value:
            return Policy.from_dict(value)
        return {name: _from_plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return tuple(_from_plain(item) for item in value)
    return value
