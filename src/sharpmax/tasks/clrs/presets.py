"""Whole experiments by name: which algorithms and sizes, and what is trained on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sharpmax.tasks.clrs.data import Recipe
from sharpmax.tasks.clrs.generator import published
from sharpmax.tasks.clrs.settings import Settings

LISTS = (
    "binary_search",
    "bubble_sort",
    "find_maximum_subarray_kadane",
    "heapsort",
    "insertion_sort",
    "kmp_matcher",
    "minimum",
    "naive_string_matcher",
    "quicksort",
)
"""Algorithms on lists whose results, without their steps, are learned in minutes."""
GRAPHS = ("bfs", "dfs", "topological_sort")
"""The same on graphs: their inputs are longer, so they are trained on smaller ones."""
TEST_SEEDS = (3, 14, 35, 81, 94)
"""The published ones of validation."""


@dataclass(frozen=True)
class Preset:
    """An experiment.

    Attributes:
        train: Sizes, by algorithm.
        test: Sizes of all of these, some of them never trained on.
        each: Samples of an algorithm and size to train on.
        each_test: Samples of an algorithm, size and seed to ask for.
        test_seeds: Of the latter.
        settings: Of the training.
    """

    train: Mapping[str, tuple[int, ...]]
    test: Sequence[int]
    each: int
    each_test: int
    test_seeds: Sequence[int]
    settings: Settings

    def recipe(self, split: str) -> Recipe:
        """Return what to make for "train" or "val", without the algorithms' steps."""
        published(split)  # which says if there is no such split
        if split == "train":
            return Recipe(self.train, (0,), self.each, trace=False)
        sizes = dict.fromkeys(self.train, tuple(self.test))
        return Recipe(sizes, tuple(self.test_seeds), self.each_test, trace=False)


PRESETS = {
    "quick": Preset(
        train=dict.fromkeys(("insertion_sort", "quicksort"), (2, 3, 4, 5)),
        test=(3, 4, 5, 6, 8, 10),
        each=2000,
        each_test=100,
        test_seeds=TEST_SEEDS[:1],
        settings=Settings(
            decoder="tiny", context=128, batch=32, steps=1000, learning_rate=2e-3, save_every=250
        ),
    ),
    "gpu": Preset(
        train=dict.fromkeys(LISTS, (4, 5, 7, 8)) | dict.fromkeys(GRAPHS, (4, 5)),
        test=(4, 5, 6, 7, 8, 9, 10, 12, 16),
        each=20_000,
        each_test=20,
        test_seeds=TEST_SEEDS,
        settings=Settings(
            decoder="medium",
            context=512,
            batch=128,
            steps=8500,
            learning_rate=1e-3,
            bf16=True,
            compile=True,
            save_every=1000,
        ),
    ),
}
