"""Sharp attention at any length: measure, bound and undo the dispersion of softmax.

Logits become row statistics, a policy makes of these an inverse temperature β for every
row, and softmax(β·logits) is sharp again. This package works on NumPy, PyTorch and JAX
arrays alike and imports none of them by itself.
"""

from sharpmax.per_head import PerHead
from sharpmax.policies import (
    HELD,
    PAPER,
    Detached,
    EntropyCap,
    Fixed,
    Interpolated,
    LogLength,
    LogLinear,
    Polynomial,
)
from sharpmax.policy import Policy
from sharpmax.softmax import softmax
from sharpmax.statistics import RowStatistics

__version__ = "0.1.0"

__all__ = [
    "HELD",
    "PAPER",
    "Detached",
    "EntropyCap",
    "Fixed",
    "Interpolated",
    "LogLength",
    "LogLinear",
    "PerHead",
    "Policy",
    "Polynomial",
    "RowStatistics",
    "softmax",
]
