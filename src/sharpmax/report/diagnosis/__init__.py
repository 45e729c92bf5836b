"""The figures of a model's heads, and the page of a run of `sharpmax diagnose`."""

from sharpmax.report.diagnosis.bound import bound
from sharpmax.report.diagnosis.entropy import entropy
from sharpmax.report.diagnosis.heads import Heads
from sharpmax.report.diagnosis.heat_map import heat_map
from sharpmax.report.diagnosis.kinds import kinds
from sharpmax.report.diagnosis.report import figures, page, write_report

__all__ = ["Heads", "bound", "entropy", "figures", "heat_map", "kinds", "page", "write_report"]
