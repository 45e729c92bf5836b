"""The report of CLRS-Text: right answers by algorithm and size, and who won where."""

from sharpmax.report.clrs.report import figures, page, write_report
from sharpmax.report.clrs.tables import Tables

__all__ = ["Tables", "figures", "page", "write_report"]
