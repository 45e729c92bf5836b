"""The report of a calibration: what it found, what that costs, and which heads it changed."""

from sharpmax.report.calibration.report import figures, page, write_report
from sharpmax.report.calibration.tables import Tables

__all__ = ["Tables", "figures", "page", "write_report"]
