"""Attention under torch.autocast: as PyTorch's own, in its dtype, with sums that stay exact."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from sharpmax import PAPER, Fixed
from sharpmax.hf.request import Request
from sharpmax.torch import attention, row_statistics


@pytest.fixture
def tensors():
    """Return a query and key as rotation leaves them, and a value as a linear layer does."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 40, 16)
    return query, key, value.bfloat16()


@pytest.mark.parametrize("policy", [Fixed(1.0), PAPER])
def test_attention_is_that_of_the_dtype(tensors, policy):
    query, key, value = (tensor.clone().requires_grad_() for tensor in tensors)
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(query, key, value=value, policy=policy, is_causal=True)
        theirs = scaled_dot_product_attention(query, key, value, is_causal=True)
    halves = [tensor.detach().bfloat16() for tensor in tensors]
    assert torch.equal(out, attention(*halves, policy=policy, is_causal=True))
    assert out.dtype == theirs.dtype == torch.bfloat16
    if policy == Fixed(1.0):
        torch.testing.assert_close(out, theirs, atol=2e-2, rtol=2e-2)
    out.float().square().sum().backward()
    assert (query.grad.dtype, value.grad.dtype) == (torch.float32, torch.bfloat16)
    with pytest.raises(ValueError, match="value must have the dtype of query"):
        attention(*tensors)


def test_statistics_are_not_rounded(tensors):
    query, key, _ = tensors
    wanted = row_statistics(query.bfloat16(), key.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        found = row_statistics(query, key)
        exact = row_statistics(query.double(), key.double())
    assert found.entropy.dtype == torch.float32
    assert exact.entropy.dtype == torch.float64
    assert torch.equal(found.entropy, wanted.entropy)


def test_devices_that_know_no_autocast():
    query, key, value = torch.empty(3, 2, 4, 40, 16, device="meta")
    assert attention(query, key, value, policy=Fixed(2.0), is_causal=True).shape == query.shape


def test_weights_of_a_layer_are_chosen_from_logits_that_are_not_rounded(tensors):
    query, key, value = tensors
    settings = {"is_causal": True, "window": None, "softcap": None, "scale": 0.5, "mask": None}
    halves = query.bfloat16(), key.bfloat16(), value
    wanted, weights = Request(*halves, **settings).answered_with_weights(PAPER, 0.0)
    with torch.autocast("cpu", torch.bfloat16):
        out, found = Request(*tensors, **settings).answered_with_weights(PAPER, 0.0)
    assert torch.equal(out, wanted)
    assert torch.equal(found, weights)
