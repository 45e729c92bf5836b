"""The entropies of a head on text, and the band that holds most of them."""

import pytest
import torch

from sharpmax.hf.calibrate.entropies import Entropies, text_entropies
from sharpmax.hf.reader import Reader


def test_the_band_of_a_head_moves_with_the_length():
    lengths = torch.arange(64.0, 1064.0, dtype=torch.float64)[None]
    noise = torch.linspace(-1, 1, 1000, dtype=torch.float64)[torch.randperm(1000)]
    band = Entropies((0.7 * lengths.log() + 2 + noise)[:, None], lengths).band(0.8)
    assert float(band["drift"]) == pytest.approx(0.7, abs=0.1)
    assert float(band["high"] - band["low"]) == pytest.approx(1.6, abs=0.1)


def test_entropies_are_those_of_the_models_own_weights(model, examples):
    text = examples.fitted_texts()[0]
    found = text_entropies(Reader(model), [text], sink_apart=False)
    weights = model(torch.tensor([text]), output_attentions=True).attentions
    wanted = torch.stack([torch.special.entr(w[0]).sum(-1)[:, 63::4] for w in weights])
    torch.testing.assert_close(found.values.float(), wanted, atol=1e-4, rtol=1e-4)


def test_without_the_sink_they_are_those_of_the_other_keys(model, examples):
    text = examples.fitted_texts()[0]
    found = text_entropies(Reader(model), [text], sink_apart=True)
    weights = model(torch.tensor([text]), output_attentions=True).attentions
    others = [w[0, :, 63::4, 1:] for w in weights]
    others = [w / w.sum(-1, keepdim=True) for w in others]
    wanted = torch.stack([torch.special.entr(w).sum(-1) for w in others])
    torch.testing.assert_close(found.values.float(), wanted, atol=1e-4, rtol=1e-4)
