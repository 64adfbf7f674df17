"""Reports of runs: one protocol for all families."""

from collections.abc import Callable
from pathlib import Path

from federation.methods import METHODS
from server.record import RunRecord

__all__ = ["REPORTS", "Show", "reports", "show_run"]

Show = Callable[[Path, bool], None]

REPORTS: dict[str, Show] = {}
"""By family, the function that draws a folder's plots, and prints its tables, or JSON as well."""


def reports(plug_in: str) -> Callable[[Show], Show]:
    """Registers the decorated function as the report of a family."""

    def register(show: Show) -> Show:
        REPORTS[plug_in] = show
        return show

    return register


def show_run(folder: Path, as_json: bool) -> bool:
    """Shows the results of the run in a folder; returns False if the folder is not a run's."""
    if not (folder / "config.json").is_file():
        return False
    method = RunRecord.open(folder).config["settings"]["method"]
    REPORTS[METHODS[method].plug_in](folder, as_json)
    return True
