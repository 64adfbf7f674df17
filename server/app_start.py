"""The beginning of every coordinator: its log, its plug-ins, its settings, its folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from logging import getLogger
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid

from engram.link.node_config import run_folder
from engram.runs.writer import Taken
from engram.settings.errors import EngramError
from engram.settings.experiment import Experiment
from engram.settings.logs import VERDICT, begin_log
from engram.settings.plugins import load_plugins
from engram.wire.flower import is_simulated

_log = getLogger("flwr.engram")


@contextmanager
def opened(grid: Grid, context: Context) -> Iterator[tuple[Experiment, Path]]:
    """Opens a ServerApp: reads its settings, and handles its errors.

    Yields:
        The settings, and the folder of the answer.

    Raises:
        EngramError: As ``verdicts``.
    """
    if not is_simulated(grid):
        begin_log()
    with verdicts():
        load_plugins()
        experiment = Experiment.from_run_config(context.run_config)
        yield experiment, run_folder(experiment, context.run_id)


@contextmanager
def verdicts() -> Iterator[None]:
    """Logs an error in one line before it is raised, for those who watch the run.

    Raises:
        EngramError: What is done in it cannot be done.
    """
    try:
        yield
    except Taken as error:  # whoever watches the run goes on with the other coordinator
        _log.warning("%s", error)
        raise
    except EngramError as error:
        _log.error("%s%s", VERDICT, error)
        raise
