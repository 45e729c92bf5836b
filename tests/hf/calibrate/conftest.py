"""A tiny model, and what it is fitted to."""

import pytest
from tiny_fit import SETTINGS, TEXT
from tiny_models import letters, tiny

from sharpmax.hf.calibrate import Examples


@pytest.fixture
def model():
    return tiny("llama", max_position_embeddings=512)


@pytest.fixture(scope="module")
def examples():
    return Examples(letters(), SETTINGS, TEXT)
