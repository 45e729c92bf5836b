"""Which settings can be."""

import dataclasses

import pytest
from tiny_fit import SETTINGS

from sharpmax.hf.calibrate import Settings
from sharpmax.hf.calibrate.settings import CHECKED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 100}, "length must be at least that of the shortest prompts, 256, got 100"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"costs": (-1.0,)}, "costs must be at least 0"),
        ({"drawn": 2.0}, "drawn must be a share from 0 to 1, got 2.0"),
        ({"heads": (0,)}, "heads must be at least 1"),
        ({"templates": ("odd",)}, "templates must be among code"),
        ({"templates": CHECKED}, "must be given, and differ"),
        ({"max_text_loss": -1.0}, "max_text_loss must be at least 0"),
        ({"costs": (0.5, 0.5)}, "costs must differ, got 0.5, 0.5"),
        ({"asked": 0}, "asked must be at least 1, got 0"),
        ({"at_once": 0}, "at_once must be at least 1, got 0"),
        ({"band": 1.0}, "band must be at least 0 and below 1"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
    ],
)
def test_settings_that_cannot_be(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SETTINGS, **change)


def test_costs_follow_what_the_policy_that_is_kept_may_cost():
    assert Settings().costs == (0.02, 0.008, 0.004)
    assert Settings(max_text_loss=0.1).costs == (0.2, 0.08, 0.04)
    assert Settings(max_text_loss=0).costs == (0,)
