"""Branches of one stem give what each sequence gives by itself, whatever the model looks like."""

import pytest
import torch
from tiny_models import DECODERS, tiny

from sharpmax import PAPER, LogLength, LogLinear
from sharpmax.hf import sharpen
from sharpmax.hf.branches import FILLED_TO, Branches
from sharpmax.hf.reader import Reader

STEMS = [[*range(3, 40)], [*range(50, 61)]]
BRANCHES = [[[7, 8, 9], [1], [30, 20, 10, 5]], [[2, 4]]]
SIZES = [len(branch) for branches in BRANCHES for branch in branches]


@torch.no_grad()
def require_alike(reader, policy):
    """Read the branches together and one by one."""
    with sharpen(reader.model, policy):
        together = reader.branch_states(STEMS, BRANCHES, SIZES)
        ends = reader.branch_states(STEMS, BRANCHES, [1] * sum(map(len, BRANCHES)))
        wanted = [
            reader.states([[*stem, *branch]])[0, len(stem) :]
            for stem, branches in zip(STEMS, BRANCHES, strict=True)
            for branch in branches
        ]
    torch.testing.assert_close(together, torch.cat(wanted), rtol=1e-5, atol=1e-6)
    last = torch.stack([states[-1] for states in wanted])
    torch.testing.assert_close(ends, last, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [name for name in DECODERS if name != "gpt_oss"])
@pytest.mark.parametrize(
    "policy",
    [PAPER, LogLength(8, 0.3), LogLinear(8, 0.2, sink_apart=True, sink=-0.5, sink_by_length=0.6)],
    ids=["paper", "length", "sink"],
)
def test_branches_are_read_as_if_alone(kind, policy):
    reader = Reader(tiny(kind).double())
    assert reader.can_branch
    require_alike(reader, policy)


def test_a_model_that_cannot_branch_reads_every_sequence_whole():
    reader = Reader(tiny("llama").double())
    reader.can_branch = False
    require_alike(reader, PAPER)


def test_a_model_with_sinks_does_not_branch():
    assert not Reader(tiny("gpt_oss")).can_branch


def test_a_stem_may_be_empty():
    reader = Reader(tiny("llama").double())
    with torch.no_grad(), sharpen(reader.model, PAPER):
        found = reader.branch_states([[], [3, 4]], [[[5, 6, 7]], [[8]]], [3, 1])
        wanted = reader.states([[5, 6, 7]])[0]
    torch.testing.assert_close(found[:3], wanted, rtol=1e-5, atol=1e-6)


def test_texts_and_branches_are_read_together_as_if_apart():
    texts = [[*range(2, 32)], [*range(12, 42)]]
    for reader in (Reader(tiny("llama")), Reader(tiny("gpt_oss"))):
        with torch.no_grad(), sharpen(reader.model, LogLinear(8, 0.2, sink_apart=True, sink=-0.5)):
            states, branches = reader.states_together(texts, STEMS, BRANCHES, SIZES)
            torch.testing.assert_close(states, reader.states(texts), rtol=1e-5, atol=1e-6)
            wanted = reader.branch_states(STEMS, BRANCHES, SIZES)
            torch.testing.assert_close(branches, wanted, rtol=1e-5, atol=1e-6)


def test_no_position_is_beyond_those_of_the_sequences():
    rows = Branches.of(STEMS, BRANCHES, torch.device("cpu"))
    longest = max(
        len(stem) + len(branch)
        for stem, branches in zip(STEMS, BRANCHES, strict=True)
        for branch in branches
    )
    assert rows.positions.max() == longest - 1
    assert rows.tokens.shape[1] % FILLED_TO == 0
