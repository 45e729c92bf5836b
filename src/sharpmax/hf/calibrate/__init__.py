"""Calibration: fit β head by head, so that a model finds things at lengths where it failed.

The weights stay as they are, and so do, as far as asked for, the predictions on text.
"""

from sharpmax.hf.calibrate.comparison import compare, compared_cases, comparison_plan
from sharpmax.hf.calibrate.examples import Examples, Question
from sharpmax.hf.calibrate.fit import Check
from sharpmax.hf.calibrate.points import Calibration, Point
from sharpmax.hf.calibrate.rivals import RIVALS, rivals
from sharpmax.hf.calibrate.settings import Settings
from sharpmax.hf.calibrate.study import (
    HeadChange,
    calibrate,
    head_changes,
    require_room,
    total_steps,
)

__all__ = [
    "RIVALS",
    "Calibration",
    "Check",
    "Examples",
    "HeadChange",
    "Point",
    "Question",
    "Settings",
    "calibrate",
    "compare",
    "compared_cases",
    "comparison_plan",
    "head_changes",
    "require_room",
    "rivals",
    "total_steps",
]
