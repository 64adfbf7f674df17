"""The process of a run on a federation, or of a question to its nodes.

``python -P -m engram.simulations.coordinator SERVER FOLDER WORK`` takes the settings as JSON from
its standard input, and says what it does in its log. WORK is MODULE:FUNCTION, which is called with
a grid of the federation's nodes, the settings, FOLDER, and the federation.
"""

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from engram.core.machine import end_with_parent
from engram.link.credentials import read_server
from engram.link.run import Link
from engram.link.server.membership import Membership
from engram.runs.run import CONFIG
from engram.server.app_start import verdicts
from engram.server.link_grid import LinkGrid
from engram.settings.errors import EngramError
from engram.settings.experiment import Experiment
from engram.settings.logs import begin_log
from engram.settings.plugins import load_plugins
from engram.simulations.deployed import run_alone, run_number


def main(arguments: Sequence[str]) -> None:
    """Does the work, and lets the nodes forget it unless it may go on later.

    Raises:
        EngramError: It cannot be done; logged in one line before it is raised.
    """
    end_with_parent()
    server, folder, work = Path(arguments[0]), Path(arguments[1]), arguments[2]
    settings = json.load(sys.stdin)
    begin_log()
    with verdicts(), run_alone(server, folder):
        load_plugins()
        begun = (folder / CONFIG).is_file()
        place = {"resume": str(folder), "out": ""} if begun else {"resume": "", "out": str(folder)}
        experiment = Experiment.from_config(settings | place)
        federation = Membership(server, read_server(server).settings.clients)
        module, _, name = work.partition(":")
        number = run_number(folder)
        link = Link(server, str(number))
        try:
            grid = LinkGrid(link, number, experiment, folder)
            getattr(import_module(module), name)(grid, experiment, folder, federation)
        except Exception as error:  # one that was not expected may not come again
            link.close(over=isinstance(error, EngramError))
            raise
        link.close(over=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except EngramError as error:
        sys.exit(error.status)
