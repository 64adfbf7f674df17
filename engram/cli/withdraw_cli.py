"""`engram withdraw`: a client leaves a run with its data; the run is trained anew without it."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from engram.arguments import read_experiment
from engram.cli import work
from engram.cli.console import out as console
from engram.cli.deployed_cli import run_on
from engram.cli.next_command import tell_next
from engram.cli.options import Json, RunName, argument, option
from engram.cli.progress import run_all
from engram.cli.run_cli import in_this_process
from engram.link.credentials import read_server
from engram.link.server.registration import roll
from engram.runs.run import Run
from engram.runs.run_places import check_unused, find_run
from engram.settings.errors import Refused
from engram.sites.withdrawal import Withdrawal, begin, noted, settings_without, withdrawal_of

app = typer.Typer()


@app.command()
def withdraw(
    run: RunName,
    client: Annotated[str, argument("CLIENT", "Its name in the run, or its number.")],
    start_from: Annotated[
        str | None,
        option(
            "RUN",
            "Where RUN started from a run with its updates: that run, retrained without it.",
            "--from",
        ),
    ] = None,
    federation: Annotated[
        Path | None, option("SERVER_FOLDER", "Retrain on the nodes of this federation.")
    ] = None,
    out: Annotated[
        Path | None, option("DIR", "Folder of the new run; default RUN-without-CLIENT.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Name the models with a leaving client's updates, and retrain a run without it."""
    folder = find_run(run)
    found = withdrawal_of(folder, client, [folder.parent, Path("runs")])
    settings = settings_without(found, None if start_from is None else find_run(start_from))
    new = out or folder.with_name(f"{folder.name}-without-{found.client}")
    record = Run.open(folder)
    _check_place(record, found.client, federation)
    check_unused(new)
    if federation is not None:
        found = found._replace(base=None)  # the sites' memories are of the former run's rounds
    _tell_before(found, new)
    with noted(found, new):
        if federation is not None:
            _on_nodes(settings, new, federation)
        else:
            _here(found, settings, new, str(record.config["engine"]))
    doomed = _doomed(found, on_nodes=federation is not None)
    _tell_after(record, doomed, on_nodes=federation is not None)
    if as_json:
        told = found.to_json() | {"retrained": str(new), "delete": [str(path) for path in doomed]}
        print(json.dumps(told))
    else:
        tell_next(f"show {shlex.quote(str(new))}")


def _check_place(record: Run, client: int, server: Path | None) -> None:
    folder, on_nodes = record.folder, record.on_nodes
    if on_nodes and server is None:
        raise Refused(
            f"{folder} was run on nodes, which have its rows: name the federation, --federation "
            "SERVER_FOLDER; where all rows are here, engram run --set participation=RUN --set "
            "without=CLIENT does the same in this process"
        )
    if not on_nodes and server is not None:
        raise Refused(f"--federation is for a run on nodes: {folder} was run in one process")
    if server is None:
        if record.results is None:
            raise Refused(
                f"{folder} is not finished, so that not all of its rounds can be repeated: start a "
                f"new run with --set without={client}"
            )
        return
    if client in roll(server).members:
        raise Refused(
            f"client-{client} is still a member of {server}: the server's operator removes it "
            f"first, engram remove {shlex.quote(str(server))} client-{client}"
        )


def _tell_before(found: Withdrawal, folder: Path) -> None:
    when = f"round {found.since}" if found.since else "the beginning"
    gone = ", and moved or deleted since"
    start = "the beginning" if found.base is None else f"the checkpoint of round {found.base}"
    lines = [
        f"client {found.client} was a member of {found.run} from {when} on: {found.took_part} "
        "rounds learned from it",
        *(f"has its updates: {path}" for path in found.models),
        *(f"has its updates: {h.folder}, which {h.link} {h.of}" for h in found.heirs),
        *(
            f"has its updates: {path}, exported{gone * (not path.exists())}"
            for path in found.exports
        ),
        f"retraining without it from {start}: {folder}",
    ]
    console.print("\n".join(lines), soft_wrap=True)


def _tell_after(record: Run, doomed: Sequence[Path], *, on_nodes: bool) -> None:
    command = f"engram memory forget CLIENT_FOLDER {record.config['training']}"
    lines = [
        *(f"delete: {path}" for path in doomed),
        *([f"delete at each site: {command}; and the models that it names"] if on_nodes else []),
        "delete copies of exported models, which no record names: those whose card names the run "
        f"{record.folder.name}",
    ]
    console.print("\n".join(lines), soft_wrap=True)


def _here(found: Withdrawal, settings: dict[str, Any], folder: Path, engine: str) -> None:
    execute = in_this_process("sequential" if engine == "sequential" else "vectorized", None)
    experiment = read_experiment(settings)
    work.Participation.of(experiment)  # refused before anything is written
    experiment = begin(found, folder, experiment, engine=engine)
    run_all({folder: experiment}, execute, f"engram run --resume {folder}")


def _on_nodes(settings: dict[str, Any], folder: Path, server: Path) -> None:
    clients, before = read_server(server).settings.clients, settings["num-clients"]
    settings = settings | {"num-clients": clients}
    settings.pop("participation")  # nodes are there or not
    if settings.get("clients-per-round") == before:  # who asks all goes on to ask all
        settings["clients-per-round"] = clients
    run_on(settings, server, folder, None, as_json=False)


def _doomed(found: Withdrawal, *, on_nodes: bool) -> list[Path]:
    """Returns the paths to delete; the record of cohorts is kept for the new run."""
    exports = [path for path in found.exports if path.exists()]
    if on_nodes:
        return [found.run, *exports]
    scores = (found.run / name for name in ("scores.jsonl", "results.json"))
    return [*found.models, *(path for path in scores if path.exists()), *exports]
