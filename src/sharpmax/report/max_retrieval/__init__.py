"""The figures of max retrieval, and the page of a run of `sharpmax reproduce`."""

from sharpmax.report.max_retrieval.accuracy import accuracy
from sharpmax.report.max_retrieval.attention import attention, attention_sharpened
from sharpmax.report.max_retrieval.dispersion import entropy
from sharpmax.report.max_retrieval.fit import fit
from sharpmax.report.max_retrieval.report import figures, page, write_report
from sharpmax.report.max_retrieval.tables import Tables
from sharpmax.report.max_retrieval.training import training

__all__ = [
    "Tables",
    "accuracy",
    "attention",
    "attention_sharpened",
    "entropy",
    "figures",
    "fit",
    "page",
    "training",
    "write_report",
]
