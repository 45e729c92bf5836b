"""The kernels of a sink that stands apart do what the definition does, and so do their gradients.

They run under Triton's interpreter where there is no GPU (see conftest.py).
"""

import pytest
import torch

from sharpmax import LogLinear, PerHead
from sharpmax.sink import sink_log_odds
from sharpmax.statistics import RowStatistics
from sharpmax.torch.choice import BAND, LOG_BETA, LOG_ODDS
from sharpmax.torch.sink_operators import log_linear, sink_joined, sink_logit

BATCH, HEADS, KEY_HEADS, QUERIES, WIDTH = 2, 4, 2, 300, 24
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COLUMNS = {True: LOG_ODDS, False: LOG_BETA}
BY_BAND = {*BAND, "below", "above", "sink_below", "sink_above"}


def normal(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator)).to(DEVICE)


def require_alike(found, wanted, given):
    """Compare two results, and the gradients of both by the same tensors."""
    torch.testing.assert_close(found, wanted.to(found.dtype), rtol=2e-4, atol=2e-5)
    upstream = normal(*found.shape, seed=9).to(found.dtype)
    for a, b in zip(
        torch.autograd.grad(found, given, upstream, retain_graph=True, allow_unused=True),
        torch.autograd.grad(wanted, given, upstream.to(wanted.dtype), allow_unused=True),
        strict=True,
    ):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("has_band", [True, False])
@pytest.mark.parametrize("is_sink", [True, False])
def test_the_policy(has_band, is_sink):
    names = [name for name in COLUMNS[is_sink] if has_band or name not in BY_BAND]
    table = normal(HEADS, len(names), seed=1, scale=0.5)
    table[0] *= 20  # a head at its bounds
    table.requires_grad_()
    numbers = dict(zip(names, table.unbind(1), strict=True))
    edge = 0.0 if has_band else None
    policy = PerHead(LogLinear(8, most=4.0, low=edge, high=edge, sink_apart=True), numbers)
    shape = BATCH, HEADS, QUERIES
    entropy, others = (normal(*shape, seed=s, scale=3.0).requires_grad_() for s in (2, 3))
    logit = normal(BATCH, QUERIES, HEADS, seed=4).requires_grad_()
    length = torch.arange(1.0, QUERIES + 1, device=DEVICE).expand(shape)
    own = torch.where(length % 10 > 0, logit.movedim(1, 2), -torch.inf)  # some see no sink
    lse = torch.where(length > 1, others, -torch.inf)  # the first sees nothing else
    rows = RowStatistics(lse, lse, entropy, length)
    found = log_linear(
        length,
        torch.stack(
            [numbers.get(name, torch.zeros(HEADS, device=DEVICE)) for name in COLUMNS[is_sink]], -1
        ),
        entropy if has_band else None,
        lse if is_sink else None,
        own if is_sink else None,
        8.0,
        4.0,
    )
    wanted = sink_log_odds(policy, rows, own) if is_sink else policy(rows)
    far = wanted.abs() > 1e20
    torch.testing.assert_close(found[far], wanted[far])
    near = (torch.where(far, 0.0, x) for x in (found, wanted))
    require_alike(*near, [table, entropy, others, logit])


@pytest.mark.parametrize("queries", [1, QUERIES])
def test_the_logit_of_a_sink(queries):
    query = normal(BATCH, QUERIES, HEADS, WIDTH).movedim(1, 2).requires_grad_()
    key = normal(BATCH, KEY_HEADS, queries, WIDTH, seed=1).requires_grad_()
    wanted = 0.3 * (query * key.repeat_interleave(HEADS // KEY_HEADS, 1)).sum(-1)
    require_alike(sink_logit(query, key, 0.3), wanted, [query, key])


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("is_shared", [True, False])
def test_the_mean_with_a_sink(before, is_shared):
    queries = before + QUERIES
    others = normal(BATCH, QUERIES, HEADS, WIDTH).movedim(1, 2).requires_grad_()
    own = normal(BATCH, KEY_HEADS, 1 if is_shared else queries, WIDTH, seed=1).requires_grad_()
    odds = normal(BATCH, HEADS, QUERIES, seed=2, scale=4.0)
    odds[0, 0, :2] = torch.tensor([1e34, -1e34])
    odds.requires_grad_()
    share = torch.sigmoid(odds)[..., None]
    repeated = own.repeat_interleave(HEADS // KEY_HEADS, 1).expand(-1, -1, queries, -1)
    mixed = (1 - share) * others + share * repeated[:, :, before:]
    wanted = torch.cat((repeated[:, :, :before], mixed), dim=2)
    require_alike(sink_joined(others, own, odds, before), wanted, [others, own, odds])


def test_not_a_number_stays_one():
    table = torch.zeros(HEADS, 8, device=DEVICE)
    table[1, 0] = torch.nan
    length = torch.ones(BATCH, HEADS, QUERIES, device=DEVICE)
    beta = log_linear(length, table, None, None, None, 8.0, 4.0)
    assert bool(beta[:, 1].isnan().all())
    assert not bool(beta[:, 2:].isnan().any())
    others, own = (torch.ones(BATCH, HEADS, n, WIDTH, device=DEVICE) for n in (QUERIES, 1))
    odds = torch.zeros(BATCH, HEADS, QUERIES, device=DEVICE)
    odds[0, 0, 3] = torch.nan
    joined = sink_joined(others, own, odds, 0)
    assert bool(joined[0, 0, 3].isnan().all())
    assert int(joined.isnan().sum()) == WIDTH
