"""Fixtures for the laws that hold in every framework, in double precision too."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: its kernels run on the CPU

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import settings
from plain_softmax import numpy_softmax

jax.config.update("jax_enable_x64", True)
settings.register_profile("sharpmax", deadline=None, derandomize=True)
settings.load_profile("sharpmax")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what only a GPU can show where there is none."""
    if not torch.cuda.is_available():
        items[:] = [item for item in items if "gpu" not in item.keywords]


@dataclass(frozen=True)
class Framework:
    """How tests make an array of a framework and look at one."""

    name: str
    array: Callable[..., Any]
    softmax: Callable[[Any], Any]
    float16: Any
    float32: Any
    float64: Any
    int32: Any


def _framework(name: str, module: Any, array: Any, softmax: Any) -> Framework:
    dtypes = {n: getattr(module, n) for n in ("float16", "float32", "float64", "int32")}
    return Framework(name, array, softmax, **dtypes)


FRAMEWORKS = [
    _framework("numpy", np, np.asarray, numpy_softmax),
    _framework("torch", torch, torch.as_tensor, lambda x: torch.softmax(x, -1)),
    _framework("jax", jnp, jnp.asarray, jax.nn.softmax),
]


@pytest.fixture(params=FRAMEWORKS, ids=lambda framework: framework.name)
def framework(request: pytest.FixtureRequest) -> Framework:
    """Each framework in turn."""
    return request.param
