"""How many keys each query sees, counted in a few steps or one by one."""

import itertools

import pytest
import torch

from sharpmax.torch.scores import Scores

QUERIES, KEYS = 5, 8


@pytest.mark.parametrize("shape", [None, (), (1,), (KEYS,), (1, KEYS), (2, 1, 1, KEYS), (3, 1, 1)])
@pytest.mark.parametrize("keys", [KEYS, QUERIES, 2])
@pytest.mark.parametrize(
    ("is_causal", "window"), list(itertools.product([False, True], [None, 1, 3, 100]))
)
def test_lengths_count_the_visible_keys(
    shape: tuple[int, ...] | None, keys: int, is_causal: bool, window: int | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.zeros(2, 3, QUERIES, 4), torch.zeros(2, 3, keys, 4)
    mask = None
    if shape is not None:
        sizes = [min(size, keys) if size == KEYS else size for size in shape]
        mask = torch.rand(sizes, generator=generator) < 0.7
    scores = Scores(query, key, 1.0, is_causal, window, None, mask)
    visible = scores.visible(slice(0, QUERIES), slice(0, keys))
    whole = torch.ones(2, 3, QUERIES, keys, dtype=torch.bool)
    expected = (whole if visible is None else whole & visible).sum(-1).float()
    torch.testing.assert_close(scores.lengths(), expected)
