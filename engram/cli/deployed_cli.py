"""Runs on federations: of processes on this machine, or of nodes elsewhere."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from engram.arguments import in_project, overrides_of, refuse_keys
from engram.cli import work
from engram.cli.console import err
from engram.cli.next_command import show_found
from engram.cli.options import SEE_SETTINGS, Config, Json, Out, Set, folder_of_command, option
from engram.cli.progress import Report, Start, run_all
from engram.link.credentials import read_server
from engram.runs.participation import participation
from engram.runs.run import Run, is_run
from engram.runs.run_places import begun, data_name, find_run
from engram.settings.errors import Refused, few_names
from engram.settings.experiment import FIRST, Experiment, read_by
from engram.wire.counters import Counters, serve_counters

app = typer.Typer()

_COUNTED: Final = {
    "rounds": "Rounds of the run since this command began",
    "round_seconds": "Seconds of these rounds",
    "absent_clients": "Clients without a part in them, summed over rounds",
    "sent_bytes": "Bytes sent to nodes",
    "received_bytes": "Bytes received from nodes",
    "failures": "Failures of the coordinator, after which the run went on",
}


@app.command(epilog=SEE_SETTINGS)
def federation(
    clients: Annotated[int, option("N", "Number of nodes.", min=1)] = 3,
    sets: Set = None,
    config: Config = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Run an experiment on a federation of processes on this machine, over gRPC.

    They are those of a deployment on many machines: a server, and a node for each client, with
    TLS and authentication. Their folders and logs stay beside the results.
    """
    overrides = overrides_of(config, sets)
    refuse_keys(overrides, {"resume": "engram run --federation", "out": "--out DIR"})
    experiment = for_federation(overrides, clients)
    folder = folder_of_command(out, f"federation-{data_name(experiment)}")
    place, options = folder / "federation", _data_options(experiment)
    err.print(f"starting a server and {clients} nodes; logs in {place}/logs", soft_wrap=True)
    _ = work.STRATEGIES  # slow to import: before there are processes to stop
    with work.LoopbackFederation(place, clients=clients, options=options) as there:
        _follow(experiment, folder / "run", there.server, "run it anew")
    show_found(folder / "run", as_json)


def run_on(
    overrides: Mapping[str, Any],
    federation: Path,
    out: Path | None,
    resume: str | None,
    as_json: bool,
    metrics_port: int = 0,
) -> None:
    """Runs an experiment on a deployed federation, or resumes the one in ``out`` or ``resume``."""
    if resume is not None:
        folder = find_run(resume)
    else:
        experiment = for_server(overrides, federation)
        folder = out or folder_of_command(None, f"{experiment.method}-{data_name(experiment)}")
    if resume is not None or is_run(folder):
        settings, _ = begun(folder, overrides.get("method"))
        experiment = Experiment.from_config({**settings, **overrides})
        Run.open(folder).check_resumable(experiment, engine="flower")
    again = f"engram run --federation {federation} --out {folder}"
    _follow(experiment, folder, federation, again, metrics_port)
    show_found(folder, as_json)


def _data_options(experiment: Experiment) -> list[str]:
    source = experiment.source
    folder = source.path.parent if source.is_file else Path(experiment.data_dir)
    if not source.is_file and not folder.is_dir():
        return []
    return ["--set", f"data-dir={folder.absolute()}"]


def for_server(overrides: Mapping[str, Any], server: Path) -> Experiment:
    """Returns the experiment of a run on a federation, by the schema that its sites agree on."""
    method = str(overrides.get("method", in_project(overrides).get("method", FIRST)))
    agreed = read_by(method, work.schema_of(server))
    return for_federation(agreed | dict(overrides), read_server(server).settings.clients)


def for_federation(overrides: Mapping[str, Any], clients: int) -> Experiment:
    """Returns the experiment, by default with as many clients as the federation has.

    Raises:
        Refused: Nobody is a member yet, or the settings are not in order.
    """
    if not clients:
        raise Refused(
            "no site is a member yet: admit one, by engram register SERVER_FOLDER REQUEST"
        )
    given = in_project(overrides)
    method = str(given.get("method", FIRST))
    experiment = Experiment.from_config(read_by(method, {"num-clients": clients}) | given)
    # Other processes have other working directories.
    sources = [source.absolute() for source in experiment.own.sources(experiment)]
    return experiment.model_copy(update={"dataset": ",".join(sources)})


def _follow(
    experiment: Experiment, folder: Path, server: Path, again: str, metrics_port: int = 0
) -> None:
    counters = Counters(_COUNTED)
    serve_counters(counters, metrics_port)

    def tell(line: str) -> None:
        err.print(f"engram: {line}", soft_wrap=True)

    def trouble(line: str) -> None:
        counters.add("failures")
        tell(line)

    def execute(experiment: Experiment, folder: Path, report: Report, start: Start) -> None:
        del start  # the coordinator reads no network
        counted = Run(folder).done

        def count(row: dict[str, Any]) -> None:
            nonlocal counted
            if row["round"] > counted:  # each attempt begins by telling the last one again
                counted = row["round"]
                _count(counters, row)
            report(row)

        what = experiment, folder, server
        work.run_deployed(*what, on_round=count, on_trouble=trouble, on_word=tell)

    run_all({folder: experiment}, execute, again, at_once=True)
    for line in _without_a_part(Run.open(folder).rows()):
        tell(line)


def _count(counters: Counters, row: Mapping[str, Any]) -> None:
    counters.add("rounds")
    counters.add("round_seconds", row.get("ms", 0.0) / 1000)
    counters.add("absent_clients", len(row.get("absent", ())))
    for kind in ("sent", "received"):
        counters.add(f"{kind}_bytes", row.get(f"bytes-{kind}", 0))


def _without_a_part(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    missing: dict[str, list[str]] = {}
    rounds = rows[-1]["round"] if rows else 0
    for share in participation(rows):
        if not share.took_part:
            why = (f"{each} ({n} of {rounds} rounds)" for each, n in share.reasons.items())
            missing.setdefault(", ".join(why), []).append(share.name)
    return [
        f"without a part in the run: clients [{few_names(clients)}]: {why}"
        for why, clients in missing.items()
    ]
