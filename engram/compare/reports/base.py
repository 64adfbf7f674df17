"""Reports of runs: one protocol for all families."""

from collections.abc import Callable, Mapping
from pathlib import Path

from matplotlib.figure import Figure

from engram.runs.record import RunRecord
from engram.settings.base import Families
from engram.settings.network import NetworkMethod
from engram.strategies import Row

Show = Callable[[Path, bool], None]
Draw = Callable[[RunRecord, Row], Mapping[str, Figure]]

REPORTS: Families[Show] = Families("report")
"""By family, the function that draws a folder's plots, and prints its tables, or JSON as well."""

PLOTS: Families[Draw | None] = Families("report")
"""By family, the function that draws a run, given its results: plots by name, the main one first.
It is None for a family that draws its metrics against rounds."""


def reports(plug_in: str, draw: Draw | None = None) -> Callable[[Show], Show]:
    """Registers the decorated function, and ``draw``, as a family's report."""

    def register(show: Show) -> Show:
        REPORTS[plug_in] = show
        PLOTS[plug_in] = draw
        return show

    return register


def plots_of(record: RunRecord) -> Mapping[str, Figure]:
    """Draws a finished run; nothing where its family has no plots of its own."""
    found, draw = record.results, PLOTS[record.method.plug_in]
    return draw(record, found) if draw and found is not None else {}


def pictures_of(record: RunRecord) -> list[str]:
    """Names of the files that ``show`` draws of a finished run."""
    network = [*(metric.name for metric in record.metrics[:-1]), "clients"]  # the last is the loss
    return [f"{name}.png" for name in plots_of(record) or network]


def show_runs(folder: Path, as_json: bool) -> None:
    """Shows the results of a run, or of a comparison of methods that train networks."""
    plug_in = NetworkMethod.plug_in
    if (folder / "config.json").is_file():
        plug_in = RunRecord.open(folder).method.plug_in
    REPORTS[plug_in](folder, as_json)
