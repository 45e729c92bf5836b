"""What a calibrated policy is compared with."""

import torch

from sharpmax.hf import sharpen
from sharpmax.hf.calibrate import CASES, rivals


def test_rivals_fit_the_model(model, examples):
    cases = rivals(model, examples)
    assert list(cases) == ["plain", "paper", "held", "log length", "one β", "entropy caps"]
    assert len(cases) + 1 == CASES
    tokens = torch.tensor(examples.fitted_texts()[:1])
    for policy in cases.values():
        if policy is not None:
            with torch.no_grad(), sharpen(model, policy):
                assert model(tokens).logits.isfinite().all()
