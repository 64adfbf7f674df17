"""The ServerApp: the same for Ray and for a network."""

from logging import getLogger
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from federation.algorithms import TABLES
from federation.errors import EngramError
from federation.experiment import Experiment
from federation.hosting import run_folder
from server.coordinator import coordinate
from server.grid import PatientGrid
from server.membership import membership_of
from server.tables import RUNS, in_words

__all__ = ["app"]

_log = getLogger("flwr.engram")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the experiment that the run config describes.

    Raises:
        EngramError: If it cannot be run; logged as one line before it goes up.
    """
    try:
        experiment = Experiment.from_config(context.run_config)
        folder = run_folder(experiment, context.run_id)
        membership = membership_of(grid)
        patient = PatientGrid(grid, least=experiment.min_clients, membership=membership)
        if experiment.algorithm in TABLES:
            found = RUNS[experiment.algorithm](patient, experiment, folder, engine="flower")
            _log.info("%s; recorded in %s", in_words(found), folder)
            return
        found = coordinate(patient, experiment, folder, engine="flower", on_round=_report)
    except EngramError as error:
        _log.error("engram: %s", error)
        raise
    _log.info(
        "%s: personalized accuracy %.2f %% (sd over clients %.2f, 10th percentile %.2f), before "
        "personalization %.2f %%, %.1f ms a round; recorded in %s",
        found["algorithm"],
        100 * found["accuracy"],
        100 * found["accuracy-std"],
        100 * found["accuracy-p10"],
        100 * found["accuracy-before"],
        found["ms-per-round"],
        folder,
    )


def _report(row: dict[str, Any]) -> None:
    if "accuracy" in row:
        _log.info(
            "round %d: personalized accuracy %.2f %%, before %.2f %%",
            row["round"],
            100 * row["accuracy"],
            100 * row["accuracy-before"],
        )
