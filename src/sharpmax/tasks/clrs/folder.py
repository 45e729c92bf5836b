"""The folder of an evaluation: what was answered stays, and other models are put beside it.

`evaluation.json` tells which data was asked for and what every case is made of; `answers.csv` and
`entropies.csv` hold the results of the cases that it names.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sharpmax.files import written_whole
from sharpmax.hf.table import write_csv
from sharpmax.per_head import PerHead
from sharpmax.tasks.clrs.entropies import Entropy
from sharpmax.tasks.clrs.evaluate import Answers

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Kind = TypeVar("Kind", bound=DataclassInstance)

ABOUT, ANSWERS, ENTROPIES = "evaluation.json", "answers.csv", "entropies.csv"
SEED = ", seed "
READ: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": "True".__eq__,
}


@dataclass
class Folder:
    """The results of an evaluation.

    Attributes:
        place: Of the files.
        data: What the data set was made of.
        cases: What each case is made of, by its name and the seed of its model.
        answers: Of all cases.
        entropies: Of all cases of which they were measured.
    """

    place: Path
    data: dict[str, Any]
    cases: dict[str, Any] = field(default_factory=dict)
    answers: list[Answers] = field(default_factory=list)
    entropies: list[Entropy] = field(default_factory=list)

    @classmethod
    def open(cls, place: Path, data: dict[str, Any]) -> Folder:
        """Return the results that are there already.

        Raises:
            ValueError: If they are answers to other questions, or cannot be read.
        """
        if not (place / ABOUT).exists():
            return cls(place, data)
        try:
            held = json.loads((place / ABOUT).read_text(encoding="utf-8"))
            cases, asked = dict(held["cases"]), held["data"]
            answers = _read(place / ANSWERS, Answers)
            entropies = _read(place / ENTROPIES, Entropy)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{place} cannot be read ({error}): choose another folder") from None
        if asked != data:
            raise ValueError(f"{place} holds answers to other questions: choose another folder")
        return cls(
            place,
            data,
            cases,
            [row for row in answers if _key(row.case, row.seed) in cases],
            [row for row in entropies if _key(row.case, row.seed) in cases],
        )

    def holds(self, case: str, seed: int, made_of: dict[str, Any]) -> bool:
        """Tell whether a case is there.

        Raises:
            ValueError: If another one is, under the same name: cases are pooled over seeds, so
                that nothing but the seed may differ.
        """
        for key, held in self.cases.items():
            name, other = key.rsplit(SEED, 1)
            same = held == made_of if int(other) == seed else alike(held, made_of)
            if name == case and not same:
                raise ValueError(
                    f"{self.place} holds answers of another model that is called {case}, seed "
                    f"{other}: choose another folder"
                )
        return _key(case, seed) in self.cases

    def has_entropies(self, case: str, seed: int) -> bool:
        """Tell whether the heads' entropies of a case are there."""
        return any((row.case, row.seed) == (case, seed) for row in self.entropies)

    def add(
        self,
        case: str,
        seed: int,
        made_of: dict[str, Any],
        answers: Sequence[Answers],
        entropies: Sequence[Entropy],
    ) -> None:
        """Keep the results of a case, beside what another process may have put there meanwhile."""
        held = Folder.open(self.place, self.data)
        self.cases = held.cases | {_key(case, seed): made_of}
        self.answers = [*held.answers, *answers]
        self.entropies = [*held.entropies, *entropies]
        self.place.mkdir(parents=True, exist_ok=True)
        with written_whole(self.place / ANSWERS) as fresh:
            write_csv(fresh, Answers, self.answers)
        with written_whole(self.place / ENTROPIES) as fresh:
            write_csv(fresh, Entropy, self.entropies)
        # Last, so that it names no case whose rows are not there.
        with written_whole(self.place / ABOUT) as fresh:
            told = json.dumps({"data": self.data, "cases": self.cases}, indent=1)
            fresh.write_text(told, encoding="utf-8")


def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Tell whether two cases are made of the same but for the seed of their trainings.

    That goes for their weights, and for policies by head, which are fitted to these.
    """

    def without_seed(made_of: dict[str, Any]) -> dict[str, Any]:
        training, policy = made_of.get("training", {}), made_of.get("policy")
        settings = {**training.get("settings", {}), "seed": None}
        shared = policy if (policy or {}).get("policy") != PerHead.__name__ else PerHead.__name__
        changed = {
            "weights": None,
            "policy": shared,
            "training": {**training, "settings": settings},
        }
        return {**made_of, **changed}

    return without_seed(one) == without_seed(other)


def _key(case: str, seed: int) -> str:
    return f"{case}{SEED}{seed}"


def _read(path: Path, kind: type[Kind]) -> list[Kind]:
    types = {item.name: READ[str(item.type)] for item in fields(kind)}
    with path.open(newline="", encoding="utf-8") as file:
        return [
            kind(**{name: types[name](value) for name, value in row.items()})
            for row in csv.DictReader(file)
        ]
