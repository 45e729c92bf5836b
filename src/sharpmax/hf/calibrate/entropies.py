"""What entropies every head has on ordinary text, and how they grow with the length there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sharpmax.hf.sharpen import Sharpened, layers_and_heads, watched_by
from sharpmax.policies import Fixed
from sharpmax.torch.row_statistics import IMPLEMENTATIONS, chosen
from sharpmax.torch.sink import other_keys

if TYPE_CHECKING:
    from sharpmax.hf.reader import Reader
    from sharpmax.hf.request import Request

EVERY = 4
"""Of so many rows, one is listened to."""
SHORTEST = 64
"""Rows of fewer keys have nothing to blur."""


@dataclass(frozen=True)
class Entropies:
    """Entropies of rows that a model has read; layers without attention have none.

    Attributes:
        values: In nats, by layer and head: (layers, heads, rows).
        lengths: How many keys each of these rows saw: (layers, rows).
    """

    values: Tensor
    lengths: Tensor

    def quantile(self, share: float, up_to: int) -> Tensor:
        """Return the entropy that a share of the rows of up to so many keys stays below."""
        return torch.stack(
            [
                values[:, lengths <= up_to].quantile(share, dim=-1)
                for values, lengths in zip(self.values, self.lengths, strict=True)
            ]
        )

    def band(self, share: float) -> dict[str, Tensor]:
        """Return the drift of every head, and the band that holds a share of its rows.

        The drift is the slope of the entropy over ln n, by least squares.
        """
        logs = self.lengths.log()[:, None]
        centred = logs - logs.mean(-1, keepdim=True)
        variance = centred.square().mean(-1)
        slope = (centred * self.values).mean(-1) / variance.clamp(min=1e-6)
        drift = torch.where(variance > 1e-6, slope, 0.0)
        rest = self.values - drift[..., None] * logs
        edges = torch.tensor([(1 - share) / 2, (1 + share) / 2], dtype=rest.dtype)
        low, high = rest.quantile(edges, dim=-1)
        return {"low": low, "high": high, "drift": drift}


@torch.no_grad()
def text_entropies(reader: Reader, texts: list[list[int]], sink_apart: bool) -> Entropies:
    """Let a model read texts, and listen to its rows, or to what they are without their sinks."""
    model = reader.model
    layers, heads = layers_and_heads(model)
    heard: list[list[Tensor]] = [[] for _ in range(layers)]
    seen: list[list[Tensor]] = [[] for _ in range(layers)]

    def listen(layer: int, request: Request) -> None:
        scores = request.scores()
        if sink_apart and not request.is_sliding:
            scores = other_keys(scores)
        rows = IMPLEMENTATIONS[chosen(scores)].row_statistics(scores)
        left_out = request.query.shape[2] - rows.entropy.shape[-1]
        wanted = slice(SHORTEST - 1 - left_out, None, EVERY)
        heard[layer].append(rows.entropy[0, :, wanted].double().cpu())
        seen[layer].append(rows.length[0, 0, wanted].double().cpu())

    with Sharpened(model, watched_by(model, Fixed(1.0), listen)):
        for text in texts:
            reader.states([text])
    count = max(sum(part.shape[-1] for part in parts) for parts in heard)
    silent = torch.zeros(heads, count, dtype=torch.float64)
    values = [torch.cat(parts, -1) if parts else silent for parts in heard]
    lengths = [torch.cat(parts, -1) if parts else silent[0] + 1 for parts in seen]
    return Entropies(torch.stack(values), torch.stack(lengths))
