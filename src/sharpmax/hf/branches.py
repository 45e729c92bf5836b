"""Sequences that begin alike, laid out so that what they share is read once.

The stem comes first in a row, and then what follows it in each sequence: the branches, one behind
another. A branch stands at the positions that it would have behind the stem, and sees the stem and
itself alone. So sixteen questions for one long text cost hardly more than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sharpmax.hf.masks import MARK

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FULL, SLIDING = "full_attention", "sliding_attention"
"""What transformers calls the layers that see all tokens before them, and those with a window."""
NOBODY = -1
FILLED_TO = 64
"""Stems and what follows them are filled up to multiples of so many tokens, so that a GPU's kernels
are not compiled for ever new lengths."""


@dataclass(frozen=True)
class BranchMask:
    """What a mask of the branches' queries leaves to attention: that before them, the stem is.

    Attributes:
        stem: How many queries come before them, each of which sees the keys up to its own.
        window: How many keys back these see, or None.
    """

    stem: int
    window: int | None


@dataclass(frozen=True)
class Branches:
    """Rows of a stem and its branches.

    Attributes:
        tokens: Of shape (rows, tokens); shorter stems, and shorter rows, are filled up.
        positions: Where each token stands in its sequence.
        stems: How many tokens each row's stem has, of shape (rows,).
        stem: How many the longest has, filled up.
        owners: Which branch a token behind the stems belongs to, of shape (rows, tokens − stem).
        ends: The row of every branch, and where it ends there.
    """

    tokens: Tensor
    positions: Tensor
    stems: Tensor
    stem: int
    owners: Tensor
    ends: list[tuple[int, int]]

    @classmethod
    def of(
        cls,
        stems: Sequence[list[int]],
        branches: Sequence[Sequence[list[int]]],
        device: torch.device,
    ) -> Branches:
        """Lay out stems, each with its branches, a row each."""
        stem = _filled_up(max(map(len, stems)))
        rest = _filled_up(max(sum(map(len, some)) for some in branches))
        shape = len(stems), stem + rest
        tokens, positions = torch.zeros(shape, dtype=torch.long), torch.zeros(shape).long()
        owners = torch.full((len(stems), rest), NOBODY)
        ends = []
        for row, (first, some) in enumerate(zip(stems, branches, strict=True)):
            tokens[row, : len(first)] = torch.tensor(first, dtype=torch.long)
            positions[row, : len(first)] = torch.arange(len(first))
            place = stem
            for owner, branch in enumerate(some):
                here = slice(place, place := place + len(branch))
                tokens[row, here] = torch.tensor(branch)
                positions[row, here] = len(first) + torch.arange(len(branch))
                owners[row, here.start - stem : here.stop - stem] = owner
                ends.append((row, place))
        lengths = torch.tensor([len(first) for first in stems])
        return cls(
            tokens.to(device),
            positions.to(device),
            lengths.to(device),
            stem,
            owners.to(device),
            ends,
        )

    def mask(self, window: int | None) -> Tensor:
        """Return which keys the branches' queries see; it carries a `BranchMask`."""
        place = torch.arange(self.stem, device=self.stems.device)
        of_stem = (place < self.stems[:, None])[:, None].expand(-1, self.owners.shape[1], -1)
        of_branch = (self.owners[:, :, None] == self.owners[:, None]).tril()
        mask = torch.cat((of_stem, of_branch), dim=-1)
        if window is not None:
            back = self.positions[:, self.stem :, None] - self.positions[:, None]
            mask &= back < window
        mask = mask[:, None]
        setattr(mask, MARK, BranchMask(self.stem, window))
        return mask

    def masks(self, model: PreTrainedModel) -> Tensor | dict[str, Tensor]:
        """Return the mask of every layer, by kind where there are several kinds.

        Raises:
            NotImplementedError: If layers look back in another way than by attention.
        """
        windows = windows_of(model)
        masks = {kind: self.mask(window) for kind, window in windows.items()}
        return masks if len(masks) > 1 else next(iter(masks.values()))


def _filled_up(length: int) -> int:
    return max(1, -(-length // FILLED_TO)) * FILLED_TO


def alike(sequences: Sequence[list[int]]) -> int:
    """Return how many tokens sequences have in common at their beginning."""
    places = enumerate(zip(*sequences, strict=False))
    shortest = min(map(len, sequences))
    return next((place for place, tokens in places if len({*tokens}) > 1), shortest)


def windows_of(model: PreTrainedModel) -> dict[str, int | None]:
    """Return how far every kind of a model's layers looks back; None for all the way.

    Raises:
        NotImplementedError: If some look back in another way than by attention.
    """
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or [FULL if window is None else SLIDING])
    if not kinds <= {FULL, SLIDING}:
        raise NotImplementedError(f"{type(model).__name__} has layers of {', '.join(kinds)}")
    return {kind: window if kind == SLIDING else None for kind in sorted(kinds)}
