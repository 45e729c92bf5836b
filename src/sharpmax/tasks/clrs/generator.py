"""The benchmark's own generator of samples, without the rest of its package.

dm-clrs declares TensorFlow, of which the text generator needs the name of one class, and Haiku and
more, of which it needs nothing. So it is installed without what it declares,

    pip install '.[clrs]' && pip install --no-deps dm-clrs==2.0.3

and imported without running the packages' `__init__`, with something called TensorFlow in its
place for as long as that takes.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

TEXT = "clrs._src.clrs_text"
DECIMALS = 3
"""Of floating numbers, cut off before the algorithm runs: so the text tells all that it sees."""
LEAST_SIZES = {"strongly_connected_components": 4, "naive_string_matcher": 3, "kmp_matcher": 3}
LEAST_SIZE = 2
MOST_TRIES = 1000
FALSE_COLLINEARITY = 1e-12
"""Twice the area of a triangle below which its corners count as on one line."""


class Sample(NamedTuple):
    """One run of an algorithm.

    Attributes:
        algorithm: Its name.
        size: Of its input.
        question: The algorithm's name, its input, and what is asked for.
        answer: What comes after that, up to the end of the text.
    """

    algorithm: str
    size: int
    question: str
    answer: str


class Published(NamedTuple):
    """What the benchmark publishes for a split.

    Attributes:
        sizes: By algorithm.
        seeds: Of the samples.
        each: How many samples of an algorithm, size and seed there are.
    """

    sizes: Mapping[str, tuple[int, ...]]
    seeds: tuple[int, ...]
    each: int


def samples(algorithm: str, size: int, seed: int, *, trace: bool = True) -> Iterator[Sample]:
    """Return the endless stream of samples of an algorithm, a size and a seed.

    Args:
        algorithm: One of the thirty.
        size: Of its input. That of segments_intersect says nothing: its input is always the same.
        seed: Algorithms whose inputs are of one kind get the same ones for the same seed.
        trace: Whether the steps of the algorithm come before its result.

    Raises:
        ValueError: If there is no such algorithm, or it has no input of that size.
    """
    require_possible(algorithm, size)
    package = _package()
    sampler, _ = package.samplers.build_sampler(
        algorithm,
        seed=seed,
        num_samples=-1,
        length=size,
        track_max_steps=False,
        truncate_decimals=DECIMALS,
    )
    while True:
        drawn = sampler.next(batch_size=1)
        text = package.clrs_utils.format_clrs_example(algorithm, drawn, use_hints=trace)
        yield Sample(algorithm, size, *text)


def require_possible(algorithm: str, size: int) -> None:
    """Raise a ValueError unless there is such an algorithm with inputs of that size."""
    known = published("train").sizes
    if algorithm not in known:
        raise ValueError(f"algorithm must be one of {', '.join(sorted(known))}, got {algorithm!r}")
    least = LEAST_SIZES.get(algorithm, LEAST_SIZE)
    if size < least:
        raise ValueError(f"size of {algorithm} must be at least {least}, got {size}")


@functools.cache
def published(split: str) -> Published:
    """Return the published sizes, seeds and numbers of samples of "train" or "val"."""
    if split not in ("train", "val"):
        raise ValueError(f"split must be train or val, got {split!r}")
    found, name = _constants(), f"_DEFAULT_{split.upper()}"
    sizes = found[f"{name}_ALGOS_AND_LENGTHS"]
    return Published(
        {algorithm: tuple(sizes[algorithm]) for algorithm in sorted(sizes)},
        tuple(found[f"{name}_SEEDS"]),
        int(found[f"{name}_NUMBER_OF_SAMPLES"]),
    )


@functools.cache
def version() -> str:
    """Return the generator's version."""
    from importlib.metadata import version

    return version("dm-clrs")


@functools.cache
def _constants() -> dict[str, Any]:
    """Return the constants of the script that makes the published data, which is not executed."""
    script = Path(_bare(TEXT).__path__[0]) / "generate_clrs_text.py"
    found = {}
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            code = compile(ast.Expression(node.value), str(script), "eval")
            try:
                value = eval(code, {"__builtins__": {"list": list, "range": range}})
            except NameError:
                continue  # not made of numbers alone
            found[node.targets[0].id] = value
    return found


@functools.cache
def _package() -> Any:
    """Return the module that writes samples as text."""
    _bare(TEXT)
    stand_in: Any = types.ModuleType("tensorflow")
    stand_in.Tensor = type("Tensor", (), {})
    absent = "tensorflow" not in sys.modules
    sys.modules.setdefault("tensorflow", stand_in)
    try:
        from absl import logging

        logging.set_verbosity(logging.ERROR)  # it tells of every sampler that it is on the fly
        module = importlib.import_module(f"{TEXT}.huggingface_generators")
    except ImportError as error:
        raise _missing(error) from None
    finally:
        if absent:
            del sys.modules["tensorflow"]
    module.samplers.ConvexHullSampler._sample_data = _points
    return module


def _bare(name: str) -> types.ModuleType:
    """Return a package with its place but without what its `__init__` would import."""
    if name not in sys.modules:
        parent = name.rpartition(".")[0]
        if parent:
            _bare(parent)
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise _missing(ImportError(name=name))
        sys.modules[name] = importlib.util.module_from_spec(spec)
    return sys.modules[name]


def _missing(error: ImportError) -> ValueError:
    return ValueError(
        f"CLRS-Text needs {error.name}: pip install 'sharpmax[clrs]' && "
        "pip install --no-deps dm-clrs==2.0.3"
    )


def _points(self: Any, length: int, radius: float = 2.0, **__: Any) -> list[np.ndarray]:
    """Draw points in a disk, of which no three are on one line, as the generator does.

    It looks at all triples one by one, which is most of the time of the whole data set; here all
    that share their first point are looked at together. The points are the same to the last bit.
    """
    second, third = np.triu_indices(length, 1)
    for _ in range(MOST_TRIES):
        angle = self._random_sequence(length=length, low=0.0, high=2.0 * np.pi)
        distance = radius * np.sqrt(self._random_sequence(length=length, low=0.0, high=1.0))
        x = self._trunc_array(distance * np.cos(angle) + 0.0)
        y = self._trunc_array(distance * np.sin(angle) + 0.0)
        for first in range(length - 2):
            i, j = second[second > first], third[second > first]
            twice_area = (x[i] - x[first]) * (y[j] - y[first])
            twice_area = twice_area - (y[i] - y[first]) * (x[j] - x[first])
            if (np.abs(twice_area) < FALSE_COLLINEARITY).any():
                break
        else:
            return [x, y]
    raise ValueError(f"{length} points, no three of them on a line, were not found: take fewer")
