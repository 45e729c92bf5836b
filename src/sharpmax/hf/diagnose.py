"""Look at a model's heads as its context grows: which disperse, which are local, which are sinks.

A causal model reads once, up to the longest length: what it does with the first n tokens does
not depend on those that follow, so the rows before n tell of length n. Where the text ends in a
question, every length is read by itself, and its last row is looked at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sharpmax.hf.heads import MEASURES, measured
from sharpmax.hf.kinds import kinds
from sharpmax.hf.sharpen import (
    Sharpened,
    context_of,
    layers_and_heads,
    require_interface,
    watched_by,
)
from sharpmax.hf.table import write_csv
from sharpmax.hf.texts import Reading, ends_in_a_question, reading
from sharpmax.policies import Fixed
from sharpmax.policy import Policy, require_policy
from sharpmax.theory import dispersion_length

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from sharpmax.hf.request import Request

SHORTEST, LONGEST = 64, 8192


@dataclass(frozen=True)
class Head:
    """What a head did at one length; means over rows.

    Attributes:
        case: The model and policy.
        length: Tokens read.
        layer: From 0.
        head: From 0.
        rows: How many rows the means are over.
        entropy: Of the weights, in nats.
        share: The entropy over ln n.
        largest: The largest weight.
        first: The weight on the first token, or on a learned sink.
        near: The weight on the 32 last tokens.
        beta: The inverse temperature.
        spread: δ, the largest logit less the smallest; of the others where the sink stands apart.
        bound: What no weight can exceed at that spread, exp(βδ)/n, but the share of such a sink.
        half_length: The length beyond which no token, but such a sink, can have half of the
            weight, 2·exp(βδ), for the mean β and δ.
    """

    case: str
    length: int
    layer: int
    head: int
    rows: int
    entropy: float
    share: float
    largest: float
    first: float
    near: float
    beta: float
    spread: float
    bound: float
    half_length: float


@dataclass(frozen=True)
class Diagnosis:
    """The table of a diagnosis: a row for each case, length, layer and head."""

    heads: Sequence[Head]

    def __add__(self, other: Diagnosis) -> Diagnosis:
        return Diagnosis([*self.heads, *other.heads])

    def with_kinds(self) -> list[tuple[Head, str]]:
        """Return every row with the kind of its head; see `sharpmax.hf.kinds`."""
        of = kinds(self)
        return [(head, of[head.case, head.layer, head.head]) for head in self.heads]

    def write_csv(self, path: Path) -> None:
        """Write the table."""
        write_csv(path, Head, self.heads)

    def write_parquet(self, path: Path) -> None:
        """Write the table for pandas, Polars, DuckDB and others; it needs pyarrow."""
        import pyarrow
        from pyarrow import parquet

        table = pyarrow.Table.from_pylist([asdict(head) for head in self.heads])
        parquet.write_table(table, path)


@torch.no_grad()
def diagnose(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lengths: Sequence[int] | None = None,
    text: str | None = None,
    *,
    policy: Policy | None = None,
    case: str = "plain",
    rows: int | None = None,
    samples: int = 1,
    tell: Callable[[int, int], None] = lambda *_: None,
) -> Diagnosis:
    """Measure every head of a model at several lengths, in memory linear in the length.

    Args:
        model: A model whose attention goes through transformers' interface.
        tokenizer: Its tokenizer.
        lengths: In tokens; 64, 128, … up to 8,192, the model's context or the text's end if None.
        text: What is read: "max" for the paper's question, "keys" for pairs of which one is asked
            for, None for English prose, or a text of its own.
        policy: What sharpens the model meanwhile; nothing if None.
        case: What to call model and policy in the table.
        rows: How many rows to look at before every length n; the whole second half, from n/2
            on, if None. Of a text that ends in a question, it is the last.
        samples: How many texts to read.
        tell: Told how much is done, and how much there is.

    Raises:
        ValueError: If a length is beyond the model's context, or the text is too short.
    """
    require_interface(model)
    policy = Fixed(1.0) if policy is None else policy
    require_policy(policy)
    given = lengths
    lengths = _checked_lengths(model, lengths)
    for name, number in (("rows", rows), ("samples", samples)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
    source = reading(tokenizer, text)
    asks = ends_in_a_question(text)
    if asks and rows is not None:
        raise ValueError("rows cannot be chosen of a text that ends in a question: leave it out")
    if given is None and not asks:
        lengths = _available(source, lengths, samples)
    if model.config.is_encoder_decoder:
        raise ValueError(
            f"{type(model).__name__} has heads of several kinds in a layer: diagnose its encoder"
        )
    # Where rows see what follows them, every length is another text.
    apart = asks or any(getattr(m, "is_causal", True) is False for m in model.modules())
    layers, _ = layers_and_heads(model)
    readings = [
        (sample, ends)
        for sample in range(samples)
        for ends in ([[n] for n in lengths] if apart else [lengths])
    ]
    total = sum(ends[-1] for _, ends in readings) * layers
    done = 0
    found = _Found()
    for sample, ends in readings:
        tokens = torch.tensor([source(ends[-1], sample)], device=model.device)
        count = tokens.shape[1]
        spans = {n: slice(n // 2 if rows is None else max(0, n - rows), n) for n in ends}
        if asks:
            spans = {ends[-1]: slice(count - 1, count)}

        def look(layer: int, request: Request, spans: Mapping[int, slice] = spans) -> None:
            nonlocal done
            for length, span in spans.items():
                sums = measured(request, policy.layer(layer), span)
                found.add(length, layer, span.stop - span.start, sums)
            done += max(spans)
            tell(done, total)

        with Sharpened(model, watched_by(model, policy, look)):
            model.base_model(tokens, use_cache=False)
    heads = found.heads(case)
    if not heads:
        raise ValueError(f"{type(model).__name__} never asked for attention")
    return Diagnosis(heads)


class _Found:
    """The sums of what was measured, by length and layer."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, int], tuple[int, Tensor]] = {}

    def add(self, length: int, layer: int, rows: int, sums: Tensor) -> None:
        before, total = self._sums.get((length, layer), (0, torch.zeros_like(sums)))
        self._sums[length, layer] = before + rows, total + sums

    def heads(self, case: str) -> list[Head]:
        """Return the means, by length, layer and head."""
        table = []
        for (length, layer), (rows, sums) in sorted(self._sums.items()):
            for head, means in enumerate((sums / rows).T.tolist()):
                values = dict(zip(MEASURES, means, strict=True))
                half = float(dispersion_length(values["spread"], 0.5, values["beta"]))
                table.append(Head(case, length, layer, head, rows, **values, half_length=half))
        return table


def _available(source: Reading, lengths: list[int], samples: int) -> list[int]:
    """Return the lengths that the text has; the shortest at least, which will say what it lacks."""
    for count in range(len(lengths), 1, -1):
        with contextlib.suppress(ValueError):
            source(lengths[count - 1], samples - 1)
            return lengths[:count]
    return lengths[:1]


def _checked_lengths(model: PreTrainedModel, lengths: Sequence[int] | None) -> list[int]:
    """Return the lengths in order, all of them within the model's context."""
    most = context_of(model)
    if lengths is None:
        doubled = [int(min(SHORTEST, most))]
        while 2 * doubled[-1] <= min(LONGEST, most):
            doubled.append(2 * doubled[-1])
        return doubled
    if isinstance(lengths, int) or not lengths:
        raise ValueError(f"lengths must be a sequence of at least one length, got {lengths!r}")
    ordered = sorted(set(lengths))
    if ordered[0] < 2:
        raise ValueError(f"lengths must be at least 2 tokens, got {ordered[0]}")
    if ordered[-1] > most:
        raise ValueError(
            f"lengths must be within the model's context of {most:,} tokens, got {ordered[-1]:,}"
        )
    return ordered
