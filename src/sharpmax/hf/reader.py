"""A causal model that reads sequences and makes logits only of the tokens that are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sharpmax.hf.branches import Branches, windows_of
from sharpmax.hf.sharpen import context_of, sharpen
from sharpmax.policies import Fixed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOKENS_AT_ONCE = 512
"""Whose logits over the whole vocabulary are held at a time."""
TRIED = 8
"""Tokens by which it is seen how a model makes its logits, and what it sees."""


class Reader:
    """Reads with a model; logits are made a few hundred tokens at a time.

    That is so where the model's last layer is all that stands between them and the hidden states;
    of another model, the logits themselves are kept.

    Args:
        model: That reads.
        longest: Of the sequences whose branches are to be read; up to the model's context if None.
    """

    def __init__(self, model: PreTrainedModel, longest: int | None = None) -> None:
        self.model = model
        self._longest = longest
        self._has_plain_head = _has_plain_head(model)

    def states(self, sequences: list[list[int]]) -> Tensor:
        """Return what logits are made of, for every token of every sequence.

        Shorter ones are filled up behind their end, where nothing that counts can see it.
        """
        longest = max(map(len, sequences))
        rows = [[*tokens, *[tokens[-1]] * (longest - len(tokens))] for tokens in sequences]
        tokens = torch.tensor(rows, device=self.model.device)
        return self._read(tokens)

    def branch_states(
        self,
        stems: Sequence[list[int]],
        branches: Sequence[Sequence[list[int]]],
        sizes: Sequence[int],
    ) -> Tensor:
        """Return the states of every stem's branches, one behind another: (tokens, width).

        The model must be sharpened. A stem is read once for all of its branches where the model
        allows it, and otherwise with each of them.

        Args:
            stems: What comes before the branches.
            branches: Of each stem.
            sizes: How many of its last tokens are wanted of each branch.
        """
        if not self.can_branch:
            every = [[*stem, *b] for stem, some in zip(stems, branches, strict=True) for b in some]
            return _before(self.states(every), list(enumerate(map(len, every))), sizes)
        rows = Branches.of(stems, branches, self.model.device)
        return _before(self._branched(rows), rows.ends, sizes)

    def states_together(
        self,
        texts: list[list[int]],
        stems: Sequence[list[int]],
        branches: Sequence[Sequence[list[int]]],
        sizes: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """Return what `states` and `branch_states` do, read in one pass where the model allows it.

        The texts must be of the same length.
        """
        if not self.can_branch:
            return self.states(texts), self.branch_states(stems, branches, sizes)
        none: list[list[list[int]]] = [[] for _ in texts]
        rows = Branches.of([*texts, *stems], [*none, *branches], self.model.device)
        states = self._branched(rows)
        return states[: len(texts), : len(texts[0])], _before(states, rows.ends, sizes)

    @cached_property
    def can_branch(self) -> bool:
        """Whether a stem and its branches give what each sequence gives by itself: it is tried."""
        model = self.model
        try:
            most = context_of(model) if self._longest is None else self._longest
            # A window that no sequence is long enough for does not show.
            tried = [TRIED + (window or 0) for window in windows_of(model).values()]
            length = max((length for length in tried if length + TRIED <= most), default=TRIED)
            some = [place % model.config.get_text_config().vocab_size for place in range(length)]
            stem, branch = some, some[: TRIED - 1]
            with torch.no_grad(), sharpen(model, Fixed(1.0)):
                laid_out = Branches.of([stem], [[branch[::-1], branch]], model.device)
                found = _before(self._branched(laid_out), laid_out.ends[1:], [len(branch)])
                wanted = self.states([[*stem, *branch]])[0, length:]
        except torch.OutOfMemoryError:
            raise
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            return False  # NotImplementedError is a RuntimeError
        error = (found - wanted).float().norm() / wanted.float().norm()
        return bool(error < torch.finfo(wanted.dtype).eps ** 0.5)

    def _branched(self, rows: Branches) -> Tensor:
        return self._read(
            rows.tokens, position_ids=rows.positions, attention_mask=rows.masks(self.model)
        )

    def _read(self, tokens: Tensor, **settings: Any) -> Tensor:
        if self._has_plain_head:
            hidden: Tensor = self.model.base_model(
                tokens, use_cache=False, **settings
            ).last_hidden_state
            return hidden
        logits: Tensor = self.model(tokens, use_cache=False, **settings).logits
        return logits

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits of some tokens, in float32 or float64."""
        return _logits(self.model, states) if self._has_plain_head else states.float()

    def text_losses(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return the loss of every token but the first, in nats, of shape (batch, tokens − 1)."""
        losses = []
        for start in range(0, tokens.shape[1] - 1, TOKENS_AT_ONCE):
            part = slice(start, min(start + TOKENS_AT_ONCE, tokens.shape[1] - 1))
            following = tokens[:, part.start + 1 : part.stop + 1]
            logits = self.logits(states[:, part]).flatten(0, 1)
            loss = cross_entropy(logits, following.flatten(), reduction="none")
            losses.append(loss.view(following.shape))
        return torch.cat(losses, dim=1)


def _before(states: Tensor, ends: list[tuple[int, int]], sizes: Sequence[int]) -> Tensor:
    """Return so many states before each end, which is a row and a place in it, all at once."""
    width = states.shape[1]
    places = [
        row * width + place
        for (row, end), size in zip(ends, sizes, strict=True)
        for place in range(end - size, end)
    ]
    return states.flatten(0, 1).index_select(
        0, torch.tensor(places, dtype=torch.long, device=states.device)
    )


def _logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Return the logits that the last layer, and a softcap where there is one, make of states."""
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    logits: Tensor = head(hidden)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


@torch.no_grad()
def _has_plain_head(model: PreTrainedModel) -> bool:
    """Tell whether logits are the last layer of the hidden states: some models scale them."""
    # Several tokens, since that of padding may be zeros everywhere.
    few = torch.arange(min(TRIED, model.config.get_text_config().vocab_size), device=model.device)
    ours = _logits(model, model.base_model(few[None], use_cache=False).last_hidden_state)
    theirs = model(few[None], use_cache=False).logits.to(ours.dtype)
    return ours.shape == theirs.shape and bool(torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2))
