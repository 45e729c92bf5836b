"""Which settings can be."""

import dataclasses
import math

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
        ({"heads": (0,)}, "heads must be fewer and fewer, and at least 1, got 0"),
        ({"heads": (3, 5)}, "heads must be fewer and fewer, and at least 1, got 3, 5"),
        ({"templates": ("odd",)}, "templates must be among code"),
        ({"templates": ("room",)}, "templates must leave 'room' for tests"),
        (
            {"templates": CHECKED[:1]},
            "templates must leave those that are looked at",
        ),
        ({"templates": ()}, "templates to fit to and templates to look at must be given"),
        ({"max_text_loss": -1.0, "costs": ()}, "max_text_loss must be at least 0"),
        ({"max_text_loss": math.inf}, "max_text_loss must be finite, got inf"),
        ({"costs": (0.1, math.nan)}, "costs must be finite, got nan"),
        ({"learning_rate": math.inf}, "learning_rate must be finite, got inf"),
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 1.5}, "steps must be of type int, got 1.5"),
        ({"steps": True}, "steps must be of type int, got True"),
        ({"sink": 1}, "sink must be of type bool, got 1"),
        ({"costs": 0.1}, "costs must be several, such as a tuple, got 0.1"),
        ({"templates": "room"}, "templates must be several, such as a tuple, got 'room'"),
        ({"heads": ("8",)}, "heads must be of type int, got '8'"),
    ],
)
def test_settings_of_another_kind(change, message):
    with pytest.raises(TypeError, match=message):
        dataclasses.replace(SETTINGS, **change)


def test_costs_follow_what_the_policy_that_is_kept_may_cost():
    assert Settings().costs == (0.02, 0.008, 0.004)
    assert Settings(max_text_loss=0.1).costs == (0.2, 0.08, 0.04)
    assert Settings(max_text_loss=0).costs == (0,)
