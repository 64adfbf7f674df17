"""Both sides of an experiment as Flower apps, for a project that `flwr run` packs and starts."""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from engram.client.app import app
from engram.core.process_modes import own_modes
from engram.data.source import Source
from engram.python_arguments import settings_of
from engram.server.app import main
from engram.settings.experiment import lists_settings
from engram.settings.plugins import add_plugins
from engram.settings.settings_files import in_run_config

if TYPE_CHECKING:
    from engram.data.readers.in_memory import Data

_ROWS: Final[dict[str, Source]] = {}
"""Rows that apps of this process were given: Ray copies what an app holds for each message."""


@lists_settings
@own_modes()
def make_client_app(
    module: str, data: "Data | None" = None, *, method: str | None = None, **settings: Any
) -> ClientApp:
    """Makes the ClientApp of an experiment: ``app = engram.make_client_app(__name__)``.

    Args:
        module: ``__name__`` of the module that calls this. The package, or module, that it is in is
            a plug-in of all processes that take part, and so part of the source's fingerprint,
            which nodes and server compare.
        data: As for ``engram.simulate``; of these rows a node looks at those of its clients.
        method: What to run; by default what the run config says.
        **settings: As for ``engram.simulate``. What the run config says counts in their place.
            Server and clients must be given the same.

    Raises:
        Refused: If data are impossible, or the module is none that can be imported.
    """
    given = _given(module, data, method, settings)
    made = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        import_module(module)  # Ray moves this function to processes that have not
        return app(message, _with(given, context))

    for register in (made.query("roster"), made.train(), made.evaluate()):
        register(answer)
    return made


@lists_settings
@own_modes()
def make_server_app(
    module: str, data: "Data | None" = None, *, method: str | None = None, **settings: Any
) -> ServerApp:
    """Makes the ServerApp of an experiment, as ``make_client_app`` makes its ClientApp."""
    given = _given(module, data, method, settings)
    made = ServerApp()

    @made.main()
    def start(grid: Grid, context: Context) -> None:
        main(grid, _with(given, context))

    return made


def _given(
    module: str, data: "Data | None", method: str | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    add_plugins(module.partition(".")[0])
    given = settings_of(data, method, settings)
    if data is not None:
        _ROWS[str(given["dataset"])] = given["dataset"]
        given["dataset"] = str(given["dataset"])
    return given


def _with(given: Mapping[str, Any], context: Context) -> Context:
    config = {**given, **in_run_config(context.run_config)}
    if (dataset := str(config.get("dataset"))) in _ROWS:
        config["dataset"] = _ROWS[dataset]
    return replace(context, run_config=config)
