"""What a calibrated policy is compared with."""

import torch

from sharpmax.hf import sharpen
from sharpmax.hf.calibrate import RIVALS, rivals


def test_rivals_fit_the_model(model, examples):
    policies = rivals(model, examples)
    assert tuple(policies) == RIVALS
    tokens = torch.tensor(examples.fitted_texts()[:1])
    for policy in policies.values():
        with torch.no_grad(), sharpen(model, policy):
            assert model(tokens).logits.isfinite().all()
