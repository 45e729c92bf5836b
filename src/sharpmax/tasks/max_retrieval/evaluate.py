"""What trained networks do on sets of any size, under several policies, in bounded memory.

Sets are drawn in blocks, and their items embedded in pieces of at most `ITEMS_AT_ONCE`: the logits
of a set are kept, a number an item, and not the embeddings. A block's random numbers follow from
the settings, the size and the block's number alone, so that an evaluation can stop after any block
and go on later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sharpmax.arrays import at_least
from sharpmax.rows import SMALLEST_BETA, LogitRows
from sharpmax.tasks.max_retrieval.data import Sets, draw
from sharpmax.tasks.max_retrieval.networks import answers, directions, embed, keys
from sharpmax.theory import weight_bounds

if TYPE_CHECKING:
    from sharpmax.policy import Policy
    from sharpmax.tasks.max_retrieval.networks import Weights

ITEMS_AT_ONCE = {"cpu": 2**17, "cuda": 2**22}
"""Items, of all seeds together, whose embeddings are held at a time: 64 MiB and 2 GiB a tensor."""

ARGMAX = "argmax"
"""The name of hard attention to the largest logit: sharpening without end."""

MEASURES = ("accuracy", "entropy", "weight", "beta", "spread", "bound")


@dataclass(frozen=True)
class Scored:
    """Sets of one size with their logits under every seed's network.

    Attributes:
        sets: The sets, of leading shape (seeds, sets).
        logits: Of shape (seeds, sets, size).
        weights: The networks.
        embedded: The items' embeddings, where they are few enough to keep.
    """

    sets: Sets
    logits: Tensor
    weights: Weights
    embedded: Tensor | None

    def attended(self, attention: Tensor) -> Tensor:
        """Return Σ attention·x, of shape (seeds, sets, width)."""
        pieces = _pieces(self.weights, self.sets, self.embedded)
        parts = [(attention[..., None, piece] @ x)[..., 0, :] for piece, x in pieces]
        return torch.stack(parts).sum(0)

    def correct(self, attended: Tensor) -> Tensor:
        """Return which answers are right, of shape (seeds, sets)."""
        return answers(self.weights, attended).argmax(-1) == self.sets.target

    def measured(self, policy: Policy) -> Tensor:
        """Return `MEASURES` of every set under a policy, of shape (measures, seeds, sets)."""
        rows = LogitRows.of(self.logits)
        beta = torch.as_tensor(at_least(SMALLEST_BETA, policy(rows)), device=self.logits.device)
        beta = beta.expand(self.logits.shape[:2])
        attention = rows.softmax(beta)
        entropy, _ = rows.entropy_at(beta)
        weight = self.of_largest(attention)
        spread = self.logits.amax(-1) - self.logits.amin(-1)
        _, most = weight_bounds(spread, self.logits.shape[-1], beta)
        bound = torch.as_tensor(most).clamp(max=1)
        correct = self.correct(self.attended(attention))
        return torch.stack((correct.float(), entropy, weight, beta, spread, bound))

    def measured_at_argmax(self) -> Tensor:
        """Return `MEASURES` where all attention is on the largest logit; β is infinite there."""
        top = self.logits.argmax(-1, keepdim=True)
        attention = torch.zeros_like(self.logits).scatter_(-1, top, 1.0)
        right_item = self.of_largest(attention)
        spread = self.logits.amax(-1) - self.logits.amin(-1)
        correct = self.correct(self.attended(attention))
        nothing, endless = torch.zeros_like(spread), torch.full_like(spread, torch.inf)
        one = torch.ones_like(spread)
        return torch.stack((correct.float(), nothing, right_item, endless, spread, one))

    def of_largest(self, values: Tensor) -> Tensor:
        """Return the values of the items of the largest priority."""
        return values.gather(-1, self.sets.largest[..., None])[..., 0]


def scored(weights: Weights, sets: Sets) -> Scored:
    """Return the sets with their logits."""
    size = sets.items.shape[-2]
    direction = directions(weights, sets.query, size)[..., None]
    logits = torch.empty(sets.items.shape[:-1], device=direction.device)
    embedded = None
    for piece, x in _pieces(weights, sets, None):
        logits[..., piece] = (x @ direction)[..., 0]
        embedded = x if x.shape[-2] == size else None
    return Scored(sets, logits, weights, embedded)


def _pieces(
    weights: Weights, sets: Sets, embedded: Tensor | None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield the items' embeddings piece by piece: the whole, where it was kept."""
    seeds, count, size, _ = sets.items.shape
    if embedded is not None:
        yield slice(0, size), embedded
        return
    length = max(1, ITEMS_AT_ONCE[sets.items.device.type] // (seeds * count))
    for start in range(0, size, length):
        items = sets.items[:, :, start : start + length]
        x = embed(weights, "item", items.flatten(1, 2))
        yield slice(start, start + length), x.view(*items.shape[:3], -1)


def blocks(size: int, sets: int, seeds: int, device: torch.device) -> list[int]:
    """Return how many sets each block of an evaluation has."""
    most = max(1, ITEMS_AT_ONCE[device.type] // (seeds * size))
    return [min(most, sets - start) for start in range(0, sets, most)]


def drawn_block(
    seed: int,
    size: int,
    block: int,
    shape: tuple[int, int],
    device: torch.device,
    purpose: int = 0,
) -> Sets:
    """Return a block's sets, (seeds, sets) of them, which follow from these numbers alone."""
    mixed = ((seed * 1_000_003 + size) * 1_000_003 + block) * 1_000_003 + purpose
    generator = torch.Generator(device).manual_seed(mixed % 2**63)
    return draw(shape, size, generator)


@torch.no_grad()
def evaluate_block(
    weights: Weights, sets: Sets, policies: Mapping[str, Policy]
) -> dict[str, Tensor]:
    """Return the sums of `MEASURES` over some sets, of shape (measures, seeds), by policy.

    The spread does not depend on the policy, and "argmax" is always there.
    """
    known = scored(weights, sets)
    measured = {name: known.measured(policy) for name, policy in policies.items()}
    measured[ARGMAX] = known.measured_at_argmax()
    return {name: values.double().sum(-1).cpu() for name, values in measured.items()}


@torch.no_grad()
def most_attended(
    weights: Weights, sets: Sets, policies: Mapping[str, Policy], ranks: int = 16
) -> list[dict[str, Any]]:
    """Return one network's attention to the items of largest key norm: the head's own choice.

    A row for each policy, set and rank; rank 1 has the largest key.
    """
    known = scored(weights, sets)
    norms = torch.empty_like(known.logits)
    for piece, x in _pieces(weights, sets, known.embedded):
        norms[..., piece] = keys(weights, x.flatten(1, 2)).norm(dim=-1).view(x.shape[:3])
    top = norms.topk(min(ranks, norms.shape[-1]), -1).indices
    is_largest = (top == sets.largest[..., None])[0].tolist()
    rows = LogitRows.of(known.logits)
    chosen = {name: rows.softmax(policy(rows)) for name, policy in policies.items()}
    return [
        {"policy": name, "set": i, "rank": r + 1, "weight": weight, "is_maximum": is_largest[i][r]}
        for name, attention in chosen.items()
        for i, weights_of_set in enumerate(attention.gather(-1, top)[0].tolist())
        for r, weight in enumerate(weights_of_set)
    ]
