"""Reports, one file per family of methods. Importing this package registers them."""

from simulations.reports import local, meta_ban, molar, molar_bandit
from simulations.reports.base import PLOTS, REPORTS, pictures_of, plots_of, reports, show_run

__all__ = [
    "PLOTS",
    "REPORTS",
    "local",
    "meta_ban",
    "molar",
    "molar_bandit",
    "pictures_of",
    "plots_of",
    "reports",
    "show_run",
]
