"""The subcommands by which a site looks after its node: approvals, and the log."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from client.approvals import APPROVALS, Answer, Request, answer, requests
from client.audit import AUDIT, Audit
from federation.credentials import read_node
from federation.errors import Refused, RunStopped, say

__all__ = ["app", "asked_by", "described", "state_of"]

app = typer.Typer()

_Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="A client's folder, `client-N` of a federation.")
]
_State = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The node's --state; by default FOLDER/state."),
]


@app.command()
def approve(
    folder: _Folder,
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="The training, or its run's number; default: list them.",
        ),
    ] = None,
    refuse: Annotated[
        bool, typer.Option("--refuse", help="Refuse it, even if it was approved before.")
    ] = False,
    state: _State = None,
) -> None:
    """Approve or refuse a training that waits for its site's answer.

    Trainings wait where the site's policy has `approval = true`.
    """
    where = state_of(folder, state)
    if run is None:
        if refuse:
            raise Refused("--refuse wants the name of a training, or the number of its run")
        waiting = [one for one in requests(where / APPROVALS) if not one.answer]
        who = asked_by(folder)
        for one in waiting:
            say(*described(one, who))
        command = f"engram approve {shlex.quote(str(folder))} RUN"
        say(f"next: {command}, or with --refuse" if waiting else "no training waits for approval")
        return
    given: Answer = "refused" if refuse else "approved"
    one = answer(where / APPROVALS, run, given)
    about = {"run": one.run, "training": one.training, "method": one.method}
    Audit(where / AUDIT).append({"kind": given, **about}, trained=False)
    asks = "the run goes on within seconds, if it still waits" if not refuse else "it is told so"
    say(f"{one.training}: {given} ({one.method}, {one.rounds} rounds); {asks}")


def described(request: Request, who: str) -> list[str]:
    """Returns lines about a request: what the site is asked for, and by whom."""
    settings = " ".join(f"{key}={value}" for key, value in request.settings.items())
    return [
        f"{request.training} waits since {request.asked[:16].replace('T', ' ')} UTC",
        f"  run       {request.run}: {request.method}, {request.rounds} rounds",
        f"  settings  {settings or 'none'}; all others have their defaults",
        f"  plug-ins  {', '.join(request.plugins) or 'none'}",
        f"  privacy   {request.privacy or 'none'}",
        f"  asked by  {who}",
    ]


def asked_by(folder: Path) -> str:
    """Returns who asks for runs, as far as a node can tell.

    Raises:
        Refused: The client's folder is not in order.
    """
    credentials = read_node(folder)
    if credentials.insecure:
        return f"anybody: this federation is insecure, and {credentials.superlink} proves nothing"
    return (
        f"the SuperLink at {credentials.superlink}, by its certificate; which person there, "
        "nothing proves"
    )


@app.command()
def log(
    folder: _Folder,
    state: _State = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print lines of JSON instead.")] = False,
) -> None:
    """Show what a node has done, round by round, and check that its log is whole."""
    from client.rounds import in_words

    found = Audit(state_of(folder, state) / AUDIT).read()
    for line in found.lines:
        if as_json:
            print(json.dumps(line))
        elif line:
            say(f"{line['time']} {in_words(line)}")
    if found.fault:
        raise RunStopped(found.fault)
    if not as_json:
        say(f"{len(found.lines)} lines, none changed; the last one's hash is {found.last}")


def state_of(folder: Path, state: Path | None) -> Path:
    """Returns the folder of a node's state.

    Raises:
        Refused: There is none.
    """
    where = state or folder / "state"
    if not where.is_dir():
        raise Refused(f"{where} is not there: name a client's folder, or its --state")
    return where
