"""Commands to watch runs and federations: the board, and the status of one."""

import json
import secrets
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

import typer

from engram.cli import work
from engram.cli.console import out, table_of
from engram.cli.options import Json, Policy, Runs, State, argument, option
from engram.data.file_models import readable
from engram.guards.accounting.client_epsilon import spent_by_client
from engram.link.addresses import parse_address
from engram.link.credentials import read_server
from engram.link.server.invitations import invitations
from engram.runs.participation import costs, participation
from engram.runs.run import Run, is_run
from engram.settings.errors import Refused, need, one_line
from engram.sites.policy import USUAL

_AT: Final = "127.0.0.1:8765"
_STARTING: Final = 10.0  # seconds that a server may take until it answers
_SHORTEST: Final = 16  # characters of a token

app = typer.Typer()


@app.command()
def board(
    folder: Runs = Path("runs"),
    federation: Annotated[
        Path | None, option("SERVER_FOLDER", "The folder `server` of a live federation.")
    ] = None,
    listen: Annotated[str, option("HOST:PORT", "Where it listens.")] = _AT,
    certificate: Annotated[Path | None, option("FILE", "A certificate, for HTTPS.")] = None,
    key: Annotated[Path | None, option("FILE", "The certificate's key.")] = None,
    token_file: Annotated[
        Path | None,
        option(
            "FILE",
            "A file with the token that visitors need. By default there is none on this "
            "machine's own interface, and a new one at each start elsewhere.",
        ),
    ] = None,
) -> None:
    """Serve a web page over a folder of runs, and over a live federation."""
    need("dash", "board")
    at = parse_address(listen, "--listen")
    token = _token(token_file) if token_file or at.is_loopback else secrets.token_urlsafe(24)
    if (certificate is None) != (key is None):
        raise Refused("--certificate and --key must be given together")
    if federation is not None:
        read_server(federation)
    tls = (certificate, key) if certificate and key else None
    server = work.server_for(folder, federation, at, tls, token)
    secret = f"?token={quote(token, safe='')}" if token else ""
    out.print(f"board: http{'s' if tls else ''}://{at.reached_at}/{secret}", soft_wrap=True)
    out.print("Ctrl-C ends it.")
    try:
        server.start()
    except KeyboardInterrupt:
        server.stop()


def _token(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise Refused(f"--token-file {file} cannot be read: {error}") from error
    if len(token) < _SHORTEST:
        raise Refused(f"--token-file must hold at least {_SHORTEST} characters, got {len(token)}")
    return token


@app.command()
def status(
    target: Annotated[
        Path, argument("FOLDER", "A federation's `server`, a client's folder, or that of a run.")
    ],
    state: State = None,
    policy: Policy = None,
    as_json: Json = False,
) -> None:
    """Show the members of a federation, the clients of a run, or a node's work."""
    if is_run(target):
        _of_run(target, as_json)
    elif (target / "node.toml").is_file():
        _of_site(target, state, policy, as_json)
    else:
        _of_federation(target, as_json)


def _of_run(target: Path, as_json: bool) -> None:
    with readable(target):
        record = Run.open(target)
        rows, spent = record.rows(), spent_by_client(record)
        shares, cost = participation(rows), costs(rows)
    if as_json:
        found = {"clients": [share._asdict() for share in shares], "costs": cost}
        print(json.dumps(found | ({"epsilon": spent} if spent else {})))
        return
    columns, told = ["client", "asked", "took part", *["epsilon"] * bool(spent)], []
    for share in shares:
        why = ", ".join(f"{reason}: {times}" for reason, times in share.reasons.items())
        counts = [str(share.asked), str(share.took_part)]
        counts += [f"{spent.get(share.client, 0.0):.4g}"] if spent else []
        told.append([share.name, *counts, why])
    title = f"{target}: {record.done} rounds"
    out.print(table_of([*columns, "did not, because"], told, title=title, right=columns))
    for kind, total in cost.items():
        unit = f"{total / 2**20:.2f} MiB" if "bytes" in kind else f"{total:.1f} s"
        out.print(f"{kind:<20}{unit:>12}")


def _of_federation(target: Path, as_json: bool) -> None:
    read_server(target)  # or it is refused, before gRPC is loaded
    found = work.members(target, patience=_STARTING)
    ends = invitations(target).items()
    found += [work.Member(f"client-{number}", "invited", f"until {end}") for number, end in ends]
    if as_json:
        print(json.dumps([member._asdict() for member in found]))
        return
    if not found:
        out.print(f"{target}: nobody is a member yet")
        return
    out.print(table_of(("client", "status", "since (UTC)", "at work on"), found, title=str(target)))


def _of_site(target: Path, state: Path | None, policy: Path | None, as_json: bool) -> None:
    found = work.site_status(target, state, policy)
    if as_json:
        print(json.dumps(found.to_json()))
        return
    c, usual = found.credentials, USUAL.model_dump(mode="json", by_alias=True)
    rules = [f"{key}={value}" for key, value in found.rules().items() if value != usual[key]]
    lines = {
        "client": f"{c.partition_id} of {c.num_partitions}, of {c.federation} at {c.superlink}",
        "node": "runs" if found.runs else f"does not run: engram node {target}",
        "policy": f"{found.file or 'none'}: {one_line(', '.join(rules) or 'the defaults')}",
        "today": f"{found.rounds} of at most {found.policy.rounds_a_day} rounds of training",
        **({"budget": "; ".join(found.budget)} if found.budget else {}),
        **({"registry": f"{found.registry}, by which it knows others"} if found.registry else {}),
        "waiting": ", ".join(found.waiting) or "no training, for approval",
        "log": found.log.fault or "whole; the last lines:",
    }
    for name, text in lines.items():
        out.print(f"{name:<8}  {text}", soft_wrap=True)
    for line in filter(None, found.log.lines):
        out.print(f"{line['time']} {work.in_words(line)}", soft_wrap=True)
    if found.memories:
        out.print(work.listed(found.memories))
