"""Calibration: fit β head by head, so that a model finds things at lengths where it failed."""
