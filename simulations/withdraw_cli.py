"""`engram withdraw`: a client leaves a run with its data; the run is trained anew without it."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from federation.addresses import CONTROL
from federation.credentials import read_server
from federation.errors import Refused
from server.record import RunRecord
from server.registration import roll
from simulations.console import out as console
from simulations.options import Json, check_unused, find_run, read_experiment
from simulations.terminal import run_all, tell_next
from simulations.withdrawal import Withdrawal, begin, noted, settings_without, withdrawal_of

__all__ = ["app"]

app = typer.Typer()


@app.command()
def withdraw(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's folder, or its name in runs/.")
    ],
    client: Annotated[
        str, typer.Argument(metavar="CLIENT", help="Its name in the run, or its number.")
    ],
    start_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Where RUN started from a run with its updates: that run, retrained without it.",
        ),
    ] = None,
    federation: Annotated[
        Path | None,
        typer.Option(metavar="SERVER_FOLDER", help="Retrain on the nodes of this federation."),
    ] = None,
    control: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help=f"Its SuperLink's Control API; default {CONTROL}."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the new run; default RUN-without-CLIENT."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Name what has learned from a client that leaves, and retrain a run without it."""
    folder = find_run(run)
    found = withdrawal_of(folder, client, [folder.parent, Path("runs")])
    settings = settings_without(found, None if start_from is None else find_run(start_from))
    new = out or folder.with_name(f"{folder.name}-without-{found.client}")
    record = RunRecord.open(folder)
    on_nodes = record.config["engine"] == "flower"
    if on_nodes and federation is None:
        raise Refused(
            f"{folder} was run on nodes, which have its rows: name the federation, --federation "
            "SERVER_FOLDER; where all rows are here, engram run --set participation=RUN --set "
            "without=CLIENT does the same in this process"
        )
    if not on_nodes and federation is not None:
        raise Refused(f"--federation is for a run on nodes: {folder} was run in one process")
    if federation is not None:
        check_removed(federation, found.client)
    elif record.results is None:
        raise Refused(
            f"{folder} is not finished, so that not all of its rounds can be repeated: start a new "
            f"run with --set without={found.client}"
        )
    check_unused(new)
    _tell_models(found)
    if federation is not None:
        found = found._replace(base=None)  # the sites' memories are of the former run's rounds
        _tell_begin(found, new)
        with noted(found, new):
            _on_nodes(settings, new, federation, control)
    else:
        _tell_begin(found, new)
        with noted(found, new):
            _here(found, settings, new, str(record.config["engine"]))
    doomed = _doomed(found, on_nodes=on_nodes)
    for path in doomed:
        console.print(f"delete: {path}", soft_wrap=True)
    training = record.config["training"]
    where = f"at each site, engram memory forget CLIENT_FOLDER {training}, and " if on_nodes else ""
    console.print(
        f"not recorded here: {where}exported models whose card names the run {folder.name}",
        soft_wrap=True,
    )
    if as_json:
        told = found.to_json() | {"retrained": str(new), "delete": [str(path) for path in doomed]}
        print(json.dumps(told))
    else:
        tell_next(f"show {shlex.quote(str(new))}")


def check_removed(server: Path, client: int) -> None:
    """Checks that a client is no member of a federation any more.

    Raises:
        Refused: It is.
    """
    insecure = read_server(server).settings.insecure  # in which nobody is registered
    if not insecure and client in roll(server).members:
        raise Refused(
            f"client-{client} is still a member of {server}: the server's operator removes it "
            f"first, engram remove {shlex.quote(str(server))} client-{client}"
        )


def _tell_models(found: Withdrawal) -> None:
    when = f"round {found.since}" if found.since else "the beginning"
    lines = [
        f"client {found.client} was a member of {found.run} from {when} on: {found.took_part} "
        "rounds learned from it",
        *(f"has its updates: {path}" for path in found.models),
        *(f"has its updates: {h.folder}, which {h.link} {h.of}" for h in found.heirs),
    ]
    console.print("\n".join(lines), soft_wrap=True)


def _tell_begin(found: Withdrawal, folder: Path) -> None:
    start = "the beginning" if found.base is None else f"the checkpoint of round {found.base}"
    console.print(f"retraining without it from {start}: {folder}", soft_wrap=True)


def _here(found: Withdrawal, settings: dict[str, Any], folder: Path, engine: str) -> None:
    from simulations.replay import Participation
    from simulations.run_cli import in_this_process

    execute = in_this_process("sequential" if engine == "sequential" else "vectorized", None)
    experiment = read_experiment(settings)
    Participation.of(experiment)  # refused before anything is written
    experiment = begin(found, folder, experiment, engine=engine)
    run_all({folder: experiment}, execute, f"engram run --resume {folder}")


def _on_nodes(settings: dict[str, Any], folder: Path, server: Path, control: str | None) -> None:
    from simulations.deployed_cli import run_on

    clients, before = read_server(server).settings.clients, settings["num-clients"]
    settings = settings | {"num-clients": clients}
    settings.pop("participation")  # nodes are there or not
    if settings.get("clients-per-round") == before:  # who asks all goes on to ask all
        settings["clients-per-round"] = clients
    run_on(settings, server, control, folder, None, as_json=False)


def _doomed(found: Withdrawal, *, on_nodes: bool) -> list[Path]:
    """Returns what the operator is to delete: of a run in one process, what has its updates.

    Its record of who took part stays, since the new run repeats it.
    """
    if on_nodes:
        return [found.run]
    scores = (found.run / name for name in ("scores.jsonl", "results.json"))
    return [*found.models, *(path for path in scores if path.exists())]
