"""Reports of runs: one protocol for all families."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from engram.runs.run import Run, is_run
from engram.settings.base import Families
from engram.settings.network import NetworkMethod
from engram.wire.checksums import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Show = Callable[[Path, bool], None]
Draw = Callable[[Run, Row], "Mapping[str, Figure]"]


class Report(NamedTuple):
    """The report of a family's runs.

    Attributes:
        show: Draws a folder's plots, and prints its tables, or JSON as well.
        draw: Draws a run, given its results: plots by name, the main one first; None for a family
            that draws its metrics against rounds.
        curve: Draws a metric of a run against rounds, by its name; None with ``draw``.
        text: Returns a run's tables, "" for none; None for a family without.
    """

    show: Show
    draw: Draw | None = None
    curve: Callable[[Run, str], "Figure"] | None = None
    text: Callable[[Run], str] | None = None


REPORTS: Families[Report] = Families("report")


def reports(plug_in: str, draw: Draw | None = None) -> Callable[[Show], Show]:
    """Registers the decorated function, and ``draw``, as a family's report."""

    def register(show: Show) -> Show:
        REPORTS[plug_in] = Report(show, draw)
        return show

    return register


def plots_of(record: Run) -> "Mapping[str, Figure]":
    """Draws a finished run; nothing where its family has no plots of its own."""
    found, draw = record.results, REPORTS[record.method.plug_in].draw
    return draw(record, found) if draw and found is not None else {}


def pictures_of(record: Run) -> list[str]:
    """Names of the files that ``show`` draws of a finished run."""
    network = [*(metric.name for metric in record.metrics[:-1]), "clients"]  # the last is the loss
    return [f"{name}.png" for name in plots_of(record) or network]


def show_runs(folder: Path, as_json: bool) -> None:
    """Shows the results of a run, or of a comparison of methods that train networks."""
    plug_in = NetworkMethod.plug_in
    if is_run(folder):
        plug_in = Run.open(folder).method.plug_in
    REPORTS[plug_in].show(folder, as_json)
