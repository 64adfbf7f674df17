"""What a user is shown of runs: one protocol for all families."""

from collections.abc import Callable
from pathlib import Path

from federation.methods import METHODS
from server.record import RunRecord

__all__ = ["REPORTS", "Show", "reports", "show_run"]

Show = Callable[[Path, bool], None]

REPORTS: dict[str, Show] = {}
"""By family, what draws the plots of a folder, and prints its tables, and JSON if it is wanted."""


def reports(plug_in: str) -> Callable[[Show], Show]:
    """Makes a function known as the report of a family; to be used as its decorator."""

    def register(show: Show) -> Show:
        REPORTS[plug_in] = show
        return show

    return register


def show_run(folder: Path, as_json: bool) -> bool:
    """Shows what the run in a folder has found; returns False if the folder is not a run's."""
    if not (folder / "config.json").is_file():
        return False
    method = RunRecord.open(folder).config["settings"]["method"]
    REPORTS[METHODS[method].plug_in](folder, as_json)
    return True
