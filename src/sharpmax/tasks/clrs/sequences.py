"""Samples as sequences of tokens: the question, then the answer, which alone is learned.

And batches of them, in which order they come.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from sharpmax.files import written_whole
from sharpmax.tasks.clrs import data

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

AT_ONCE = 4096
"""Samples that are read together."""
IGNORED = -100
"""The label of a token that nothing is learned from."""
POOL = 4
"""Batches whose samples are sorted by length together, so that little is filled up.

With many, a batch would hold one or two algorithms, and three times the steps are needed."""
MULTIPLE = 8
"""Batches are filled up to a multiple of so many tokens."""


@dataclass(frozen=True)
class Sequences(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples as tokens, one after another in one array.

    Attributes:
        tokens: Of all samples.
        starts: Where each sample begins, and where the last one ends.
        answers: Where the answer of each begins.
        sizes: Of what fitted into the context, by algorithm.
        too_long: By algorithm, how many samples were left out for being over the context.
    """

    tokens: NDArray[np.integer[Any]]
    starts: NDArray[np.int64]
    answers: NDArray[np.int64]
    sizes: Mapping[str, Sequence[int]]
    too_long: Mapping[str, int]

    @classmethod
    def of_folder(
        cls, folder: str | Path, tokenizer: PreTrainedTokenizerBase, context: int
    ) -> Sequences:
        """Return the samples of a data set that fit into the context.

        Reading millions of samples takes minutes, so the tokens are kept beside the data for the
        next training.
        """
        kept = _place(Path(folder), tokenizer, context)
        if kept is not None and kept.exists():
            with suppress(OSError, SafetensorError):  # or it is made anew
                return cls._read(kept)
        found = cls.of(data.load(folder), tokenizer, context)
        if kept is not None:
            with suppress(OSError, SafetensorError):  # where nothing can be written
                found._keep(kept)
        return found

    @classmethod
    def of(cls, table: pa.Table, tokenizer: PreTrainedTokenizerBase, context: int) -> Sequences:
        """Return the samples of a table that fit into the context; the others are counted."""
        end = [tokenizer.eos_token_id]
        kind = np.min_scalar_type(len(tokenizer))
        rows: list[NDArray[np.integer[Any]]] = []
        questions: list[int] = []
        sizes: dict[str, set[int]] = {}
        too_long: Counter[str] = Counter()
        for batch in table.to_batches(AT_ONCE):
            columns = batch.to_pydict()
            asked = tokenizer(columns["question"], verbose=False)["input_ids"]
            given = answer_tokens(tokenizer, columns["answer"])
            about = zip(columns["algorithm"], columns["size"], asked, given, strict=True)
            for algorithm, size, question, answer in about:
                if len(question) + len(answer) + 1 > context:
                    too_long[algorithm] += 1
                    continue
                rows.append(np.array([*question, *answer, *end], kind))
                questions.append(len(question))
                sizes.setdefault(algorithm, set()).add(size)
        starts = np.cumsum([0, *map(len, rows)])
        tokens = np.concatenate(rows) if rows else np.zeros(0, kind)
        answers = starts[:-1] + np.array(questions, np.int64)
        fitting = {algorithm: sorted(some) for algorithm, some in sizes.items()}
        return cls(tokens, starts, answers, fitting, dict(too_long))

    @classmethod
    def _read(cls, path: Path) -> Sequences:
        with safe_open(path, "numpy") as held:
            arrays = [held.get_tensor(name) for name in ("tokens", "starts", "answers")]
            return cls(*arrays, *json.loads(held.metadata()["counted"]))

    def _keep(self, path: Path) -> None:
        arrays = {"tokens": self.tokens, "starts": self.starts, "answers": self.answers}
        with written_whole(path) as fresh:
            save_file(arrays, fresh, {"counted": json.dumps([self.sizes, self.too_long])})

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, number: int) -> dict[str, Any]:
        start, end = self.starts[number], self.starts[number + 1]
        tokens = self.tokens[start:end]
        return {"input_ids": tokens, "answer": int(self.answers[number] - start)}


def _place(folder: Path, tokenizer: PreTrainedTokenizerBase, context: int) -> Path | None:
    """Return where the tokens of a data set are kept: by all that they depend on."""
    reader = getattr(tokenizer, "backend_tokenizer", None)
    if reader is None:  # nothing tells such tokenizers apart
        return None
    told = [data.about(folder), reader.to_str(), tokenizer.eos_token_id, context]
    digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    return folder / f"tokens-{digest[:16]}.safetensors"


def answer_tokens(tokenizer: PreTrainedTokenizerBase, answers: Sequence[str]) -> list[list[int]]:
    """Return answers as what follows a question, without anything that texts begin with."""
    found: list[list[int]] = tokenizer(list(answers), add_special_tokens=False, verbose=False)[
        "input_ids"
    ]
    return found


class Collator:
    """Makes a batch of sequences, filled up behind their ends.

    What fills them up comes after all that counts, and attention is causal: no mask is needed.
    """

    def __init__(self, filling: int, context: int) -> None:
        self.filling, self.context = filling, context

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return the tokens, and the labels: those of the answers."""
        longest = max(len(sample["input_ids"]) for sample in samples)
        length = min(self.context, -(-longest // MULTIPLE) * MULTIPLE)
        tokens = torch.full((len(samples), length), self.filling)
        labels = torch.full((len(samples), length), IGNORED)
        for row, sample in enumerate(samples):
            own = torch.from_numpy(sample["input_ids"].astype(np.int64))
            tokens[row, : len(own)] = own
            labels[row, sample["answer"] : len(own)] = own[sample["answer"] :]
        return {"input_ids": tokens, "labels": labels}


class ByLength(torch.utils.data.Sampler[int]):
    """The samples in an order by chance, those that are read together of about one length.

    It depends on the seed and the epoch alone, so that a run that was stopped goes on with it.
    Those that fill no batch are left out, others in every epoch: processes have as much to do.

    Args:
        sequences: To order.
        batch: Samples in a step.
        seed: Of the order.
        parts: In which a batch is read; each is of a length of its own.
    """

    def __init__(self, sequences: Sequences, batch: int, seed: int, parts: int = 1) -> None:
        self.lengths = np.diff(sequences.starts)
        self.batch, self.part, self.seed, self.epoch = batch, batch // parts, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Let the next order be that of an epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths) // self.batch * self.batch

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng([self.seed, self.epoch])
        order = random.permutation(len(self.lengths))[: len(self)]
        pools = np.split(order, range(POOL * self.batch, len(order), POOL * self.batch))
        parts = []
        for pool in pools:
            pool = pool[np.argsort(self.lengths[pool], kind="stable")]
            parts += np.split(pool, range(self.part, len(pool), self.part))
        for number in random.permutation(len(parts)):
            yield from parts[number].tolist()
