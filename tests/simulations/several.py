"""An app for Flower that does several experiments in one run, which takes 15 seconds to begin.

The setting ``experiments`` is a file: a list of run configs, with plug-ins that are loaded then and
stay. Which of them it is at, the server leaves beside it for the nodes, which are on the same
machine.
"""

import copy
import json
from pathlib import Path

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from engram.client.app import app as ours
from engram.server.app import main
from engram.settings.plugins import add_plugins, load_plugins

server = ServerApp()
client = ClientApp()


def loaded(text):
    """Returns the run config of an experiment, whose plug-ins are loaded."""
    settings = json.loads(text)
    add_plugins(settings.pop("plug-ins", ""))
    load_plugins()
    return settings


@server.main()
def serve(grid, context):
    common = dict(context.run_config)
    path = Path(common.pop("experiments"))
    for settings in json.loads(path.read_text()):
        now = json.dumps(common | settings)
        path.with_suffix(".now").write_text(now)
        context.run_config = loaded(now)
        main(grid, context)


@client.query("roster")
@client.train()
@client.evaluate()
def answer(message, context):
    now = Path(context.run_config["experiments"]).with_suffix(".now")
    context = copy.copy(context)  # Flower keeps what it has given
    context.run_config = loaded(now.read_text())
    return ours(message, context)
