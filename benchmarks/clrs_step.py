"""A step of training on CLRS-Text with adaptive temperature, beside a plain one.

The `medium` decoder, forward, backward and AdamW, on questions and answers of about 2,048 tokens;
bf16 on a GPU, with layers as they are and compiled. On a CPU: the `tiny` decoder, float32.

    python benchmarks/clrs_step.py    writes benchmarks/results/<device>/clrs_step.csv
"""

import itertools
from collections.abc import Callable

import torch
from measure import CUDA, PLACE, in_turn, keep, summary

from sharpmax import PAPER, LogLength, Policy
from sharpmax.hf.sharpen import sharpen
from sharpmax.tasks.clrs.decoder import decoder
from sharpmax.tasks.clrs.generator import samples
from sharpmax.tasks.clrs.tokens import character_tokenizer
from sharpmax.tasks.clrs.train import compile_layers

LENGTH = 2048
DECODER, BATCHES = ("medium", [8, 32]) if CUDA else ("tiny", [2])
ALGORITHM, SIZE = "insertion_sort", 19  # about 2,300 tokens
POLICIES: dict[str, Policy | None] = {
    "plain": None,
    "PAPER": PAPER,
    "LogLength": LogLength(256, 0.2),
}


def step_of(policy: Policy | None, tokens: torch.Tensor, compiled: bool) -> Callable[[], object]:
    """Return a whole step of training of a decoder of its own."""
    model = decoder(DECODER, character_tokenizer()).to(PLACE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if policy is not None:
        sharpen(model, policy)
    if compiled:
        compile_layers(model)

    def step() -> None:
        with torch.autocast(PLACE, torch.bfloat16, enabled=CUDA):
            loss = model(tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    tokenizer, rows = character_tokenizer(), []
    for batch in BATCHES:
        drawn = itertools.islice(samples(ALGORITHM, SIZE, 0), batch)
        texts = [tokenizer(one.question + one.answer)["input_ids"][:LENGTH] for one in drawn]
        tokens = torch.tensor(texts, device=PLACE)
        for compiled in (False, True):
            times = in_turn(
                {name: step_of(policy, tokens, compiled) for name, policy in POLICIES.items()}
            )
            for name, taken in times.items():
                row = {"decoder": DECODER, "batch": batch, "tokens": LENGTH, "compiled": compiled}
                rows.append(row | {"policy": name} | summary(taken, times["plain"]))
                print(*rows[-1].values())
    keep("clrs_step", rows)


if __name__ == "__main__":
    main()
