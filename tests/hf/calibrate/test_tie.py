"""Text holds back as much as it takes."""

import dataclasses
import math

import pytest
from tiny_fit import SETTINGS, TEXT
from tiny_models import letters

from sharpmax.hf.calibrate import calibrate
from sharpmax.hf.calibrate.fit import Fitting
from sharpmax.hf.calibrate.tie import Tie


def test_the_tie_brings_the_growth_of_the_loss_to_what_is_allowed():
    tie, growths = Tie(0.01), []
    for _ in range(600):
        growths.append(0.1 / tie.value)  # what a fit that it holds back would cost
        tie.heed(growths[-1])
    assert growths[0] > 0.012
    assert growths[-1] == pytest.approx(0.01, rel=0.02)


def test_the_tie_does_not_swing_where_text_follows_it_slowly():
    for inertia in (8, 15, 40):
        tie, growth, growths = Tie(0.01), 0.02, []
        for _ in range(200):
            growth += (0.02 - 0.017 * math.log(tie.value / 1.5) - growth) / inertia * 3
            growths.append(growth)
            tie.heed(growth)
        assert max(abs(found - 0.01) for found in growths[20:]) < 0.004
        assert growths[-1] == pytest.approx(0.01, rel=0.02)


def test_the_tie_heeds_texts_of_the_full_length_alone(model, monkeypatch):
    heeded, lengths = [], []
    monkeypatch.setattr(Tie, "heed", lambda _, growth: heeded.append(growth))

    def step(_, batch, *__):
        lengths.append(len(batch.texts[0]))
        return float(lengths[-1])

    monkeypatch.setattr(Fitting, "step", step)
    settings = dataclasses.replace(SETTINGS, costs=(4.0,), steps=4, heads=(), check_every=8)
    calibrate(model, letters(), settings, text=TEXT)
    assert len(lengths) == 8
    assert heeded == [length for length in lengths if length == SETTINGS.length]
    assert 3 <= len(heeded) < 8
