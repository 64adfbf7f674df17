"""The ServerApp: the same for Ray and for a network."""

from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from engram.core.machine import keep_freed
from engram.link.server.membership import Membership
from engram.server.app_start import opened
from engram.server.grid import PatientGrid
from engram.server.run import run
from engram.settings.experiment import Experiment
from engram.strategies.running.base import STRATEGIES
from engram.wire.flower import FlowerGrid

if TYPE_CHECKING:
    from engram.server.link_grid import LinkGrid

_log = getLogger("flwr.engram")

_KEPT = 2**20  # bytes of freed memory that a coordinator keeps

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the experiment that the run config describes.

    Raises:
        EngramError: If it cannot be run; logged in one line before it is raised.
    """
    with opened(grid, context) as (experiment, folder):
        run_on_nodes(FlowerGrid(grid), experiment, folder)


def run_on_nodes(
    grid: "FlowerGrid | LinkGrid",
    experiment: Experiment,
    folder: Path,
    membership: Membership | None = None,
) -> None:
    """Runs an experiment, or resumes it, and logs its rounds.

    Raises:
        EngramError: If it cannot be run.
    """
    experiment.refuse_attack()
    patient = PatientGrid(grid, least=experiment.least_clients, membership=membership)
    if not patient.fixed:  # the parts of large replies come and go in each round
        keep_freed(_KEPT, largest=_KEPT)
    strategy = STRATEGIES[experiment.own.plug_in]

    def report(row: dict[str, Any]) -> None:
        due = row["round"] == experiment.rounds or row["round"] % experiment.eval_every == 0
        if due and (words := strategy.in_words(row)):
            _log.info("round %d: %s", row["round"], words)

    found = run(patient, experiment, folder, engine="flower", on_round=report)
    words, ms = strategy.in_words(found), found["ms-per-round"]
    _log.info("%s: %s, %.1f ms a round; recorded in %s", experiment.method, words, ms, folder)
