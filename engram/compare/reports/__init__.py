"""Reports, one file per family of methods, imported when it is asked for."""

from engram.compare.reports.base import PLOTS, REPORTS, pictures_of, plots_of, reports, show_run

__all__ = [
    "PLOTS",
    "REPORTS",
    "pictures_of",
    "plots_of",
    "reports",
    "show_run",
]
