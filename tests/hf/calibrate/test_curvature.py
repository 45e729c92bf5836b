"""Which numbers take longer steps."""

import torch

from sharpmax.hf.calibrate.curvature import step_lengths


def test_numbers_that_text_hardly_feels_take_longer_steps():
    felt = torch.tensor([1e-9, 0.5, 1.0, 2.0, 1e9, 0.0])
    lengths = step_lengths({"offset": felt, "sink": 1e-6 * felt})  # by kind: γ is felt less than β
    expected = torch.tensor([2.0, 2**0.5, 1.0, 0.5**0.5, 0.5, 2.0])
    torch.testing.assert_close(lengths, {"offset": expected, "sink": expected})
