"""A real language model, small enough for a test: SmolLM2-135M, fetched once."""

import pytest

from sharpmax.hf import Loaded, load


@pytest.fixture(scope="session")
def smollm2() -> Loaded:
    return load("smollm2-135m")
