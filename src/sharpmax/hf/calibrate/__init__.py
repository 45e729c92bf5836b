"""Calibration: fit β head by head, so that a model finds things at lengths where it failed.

The weights stay as they are, and so do, as far as asked for, the predictions on text.
"""

from sharpmax.hf.calibrate.fit import Check
from sharpmax.hf.calibrate.settings import Settings
from sharpmax.hf.calibrate.study import Calibration, Point, calibrate, total_steps

__all__ = ["Calibration", "Check", "Point", "Settings", "calibrate", "total_steps"]
