"""The beginning of every ServerApp: its log, its plug-ins, its settings, its folder."""

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
from engram.wire.messages import is_simulated

_log = getLogger("flwr.engram")


@contextmanager
def opened(grid: Grid, context: Context) -> Iterator[tuple[Experiment, Path]]:
    """Opens a ServerApp: reads its settings, and handles its errors.

    Yields:
        The settings, and the folder of the answer.

    Raises:
        EngramError: It cannot be done, here or in what is done with these; logged in one line
            before it is raised.
    """
    if not is_simulated(grid):
        begin_log()
    try:
        load_plugins()
        experiment = Experiment.from_run_config(context.run_config)
        yield experiment, run_folder(experiment, context.run_id)
    except Taken as error:  # whoever watches the run goes on with the other coordinator
        _log.warning("%s", error)
        raise
    except EngramError as error:
        _log.error("%s%s", VERDICT, error)
        raise
