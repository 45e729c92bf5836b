"""How far a model's heads spread while it writes answers, by the size of the problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from sharpmax.hf.diagnose import diagnose
from sharpmax.hf.sharpen import context_of

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from sharpmax.policy import Policy


@dataclass(frozen=True)
class Entropy:
    """What a head did while it read the answer to a problem.

    Attributes:
        case: The model and policy.
        seed: Of the model's training.
        algorithm: Of the problem.
        size: Of its input.
        layer: From 0.
        head: From 0.
        entropy: Mean of the answer's rows, in nats.
        share: The entropy over ln n.
    """

    case: str
    seed: int
    algorithm: str
    size: int
    layer: int
    head: int
    entropy: float
    share: float


def entropies(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    table: pa.Table,
    policy: Policy | None = None,
    *,
    case: str = "plain",
    seed: int = 0,
    each: int = 2,
    tell: Callable[[int], None] = lambda _: None,
) -> list[Entropy]:
    """Measure every head on a few samples of every algorithm and size.

    Only the rows of the answer count. Samples that do not fit into the context are left out.
    """
    found = []
    rows = sorted(table.to_pylist(), key=lambda row: (row["algorithm"], row["size"]))
    for (algorithm, size), group in groupby(rows, lambda row: (row["algorithm"], row["size"])):
        for row in list(group)[:each]:
            tell(1)
            text = row["question"] + row["answer"]
            count = len(tokenizer(text, verbose=False)["input_ids"])
            before = len(tokenizer(row["question"], verbose=False)["input_ids"])
            if count > context_of(model) or count <= before:
                continue
            looked = diagnose(
                model, tokenizer, [count], text, policy=policy, case=case, rows=count - before
            )
            found += [
                Entropy(
                    case, seed, algorithm, size, head.layer, head.head, head.entropy, head.share
                )
                for head in looked.heads
            ]
    return found
