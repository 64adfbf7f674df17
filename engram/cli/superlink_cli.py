"""The coordinator's subcommands: a federation's folder, its server, its clients."""

import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from logging import getLogger
from pathlib import Path
from typing import Annotated

import typer

from engram.cli import work
from engram.cli.options import Port, Server, argument, flag, option
from engram.guards.secure.registry import REGISTRY, fingerprint
from engram.link.addresses import Address, check_host
from engram.link.credentials import read_server
from engram.link.server.certificates import DAYS
from engram.link.server.identity import add_client, init_federation, new_client_key, sign_registry
from engram.link.server.invitations import admit, invite, join
from engram.link.server.launch import check_free, listening_address, warnings
from engram.link.server.registration import remove_client, roll
from engram.link.server.renewal import move_node, renew_server
from engram.runs.folders import changing
from engram.settings.errors import Refused, few_names, say
from engram.settings.logs import begin_log

_log = getLogger("flwr.engram")
_FLEET_PORT = 9092
_MOST_REPLY = 1024  # MiB that a client's reply may have unless a server is told otherwise

app = typer.Typer()


@app.command("init-federation")
def init(
    folder: Annotated[Path, argument("FOLDER", "The federation's folder.")],
    clients: Annotated[int | None, option("N", "Number of clients.")] = None,
    host: Annotated[
        list[str] | None,
        option(
            "NAME",
            "A DNS name or IP address of the server, besides the one in --superlink and the "
            "loopback addresses; may be repeated.",
        ),
    ] = None,
    superlink: Annotated[
        str | None,
        option(
            "HOST:PORT",
            f"Where clients connect; by default port {_FLEET_PORT} of the first --host, "
            "or else of 127.0.0.1.",
        ),
    ] = None,
    days: Annotated[
        int | None, option("D", f"Days that the certificate lasts; by default {DAYS}.")
    ] = None,
    add: Annotated[bool, flag("--add-client", "Instead: add a client to FOLDER.")] = False,
    new_key: Annotated[
        int | None, option("N", "Instead: give client N of FOLDER a new key.")
    ] = None,
    invites: Annotated[
        bool, flag("--invite", "Instead: print an invitation for a site to FOLDER.")
    ] = False,
    invitation: Annotated[
        Path | None,
        option("INVITATION", "Instead: make FOLDER for a site by an invitation.", "--join"),
    ] = None,
) -> None:
    """Make a federation: certificates, and a folder for the server and each client."""
    others: dict[str, object] = {"--clients": clients, "--superlink": superlink}
    others |= {"--host": host, "--days": days}
    asked = {"--add-client": add, "--new-key": new_key is not None}
    if invites or invitation is not None:
        _refuse(others | asked, "--invite" if invites else "--join")
        if invitation is None:
            made, authority = invite(folder)
            print(made.decode(), end="")
            print(f"read out to the site: the authority is {authority}", file=sys.stderr)
            return
        _refuse({"--invite": invites}, "--join")
        say(*_joined(folder, *join(invitation, folder)))
    elif add:
        _refuse(others | {"--new-key": new_key is not None}, "--add-client")
        say(*_added(folder, add_client(folder)))
    elif new_key is not None:
        _refuse(others, "--new-key")
        say(*_with_new_key(folder, new_client_key(folder, new_key)))
    else:
        if clients is None:
            raise Refused("--clients must say how many clients the federation has, 0 or more")
        hosts = host or []
        first = check_host(hosts[0] if hosts else "127.0.0.1", "--host")
        with _tidy():
            init_federation(
                folder,
                clients=clients,
                hosts=hosts,
                superlink=superlink or str(Address(first, _FLEET_PORT)),
                days=DAYS if days is None else days,
            )
        say(*_made(folder))


@app.command("superlink")
def start(
    server: Server,
    fleet: Annotated[
        str | None,
        option(
            "HOST:PORT",
            "Where it listens for clients; by default the port that they connect to, on all "
            "interfaces unless the clients are on this machine.",
        ),
    ] = None,
    max_reply: Annotated[
        int, option("MIB", "Largest size of a client's reply.", min=1)
    ] = _MOST_REPLY,
    log_json: Annotated[bool, flag("--log-json", "Log lines of JSON.")] = False,
    metrics_port: Port = 0,
) -> None:
    """Start a federation's server: clients connect to it, and runs on this machine."""
    credentials = read_server(server)
    at = listening_address(credentials, fleet)
    check_free(at, "--fleet")
    begin_log(as_json=log_json)
    for line in warnings(credentials):
        _log.warning(line)
    say(f"server of {credentials.settings.federation}: clients at {at}")
    most = max_reply * 2**20
    work.serve(credentials.folder, at, most_reply=most, metrics_port=metrics_port)


@app.command()
def register(
    server: Server,
    requests: Annotated[
        list[Path] | None, argument("[REQUEST]...", "Sites' requests to be admitted.")
    ] = None,
) -> None:
    """Admit invited sites by their requests; without any, list the members."""
    for request in requests or ():
        name, fingerprint = admit(server, request)
        say(f"{name} is a member: its key is {fingerprint}")
    if not requests:
        named = (f"client-{number}" for number in sorted(roll(read_server(server).folder).members))
        say(f"members, by their keys in {server}/clients: {few_names(named) or 'none yet'}")


@app.command()
def remove(
    server: Server,
    client: Annotated[str, argument("CLIENT", "The client, such as `client-3` or `3`.")],
) -> None:
    """Remove a client from a federation, or take its invitation back."""
    name, was_member = remove_client(server, client)
    if not was_member:
        say(f"{name}: its invitation is taken back")
        return
    number = name.removeprefix("client-")
    say(
        f"{name}: its key is refused from now on",
        f"To admit the client again: engram init-federation FOLDER --new-key {number}",
    )


@app.command()
def renew(
    folder: Annotated[
        Path,
        argument(
            "FOLDER",
            "The folder `server` of a federation, with the authority's key beside it; with "
            "--address alone also a client's, whose node was off while the server moved.",
        ),
    ],
    address: Annotated[
        str | None, option("HOST:PORT", "Where clients connect from now on.")
    ] = None,
    host: Annotated[
        list[str] | None, option("NAME", "Another name or address; may be repeated.")
    ] = None,
    days: Annotated[int, option("D", "Days that the certificate lasts.")] = DAYS,
    authority: Annotated[
        bool, flag("--new-authority", "Begin with a new authority; the present vouches.")
    ] = False,
    new_key: Annotated[
        bool, flag("--new-key", "Draw a key for the server; nodes then refuse the former.")
    ] = False,
) -> None:
    """Renew a server's certificate, address, key or authority; runs go on."""
    if address is not None and (folder / "node.toml").is_file():
        others = {"--host": host, "--new-authority": authority, "--new-key": new_key}
        _refuse(others, "a client's folder")
        move_node(folder, address)
        say(f"{folder}/node.toml: the node connects to {address}; start it again if it runs")
        return
    with changing(folder):
        tls = renew_server(
            folder, host or [], days, superlink=address, authority=authority, another_key=new_key
        )
        sign_registry(folder)
    say(f"{tls.certificate}: for {', '.join(tls.hosts)} until {tls.expires:%Y-%m-%d}")
    say(*_registry(folder))
    say(*_renewed(folder, moved=address is not None, authority=authority))


@app.command()
def stop(
    server: Server,
    run: Annotated[
        str | None,
        argument("[RUN]", "Number of the run, as `engram run` says; default: the only one."),
    ] = None,
) -> None:
    """Stop a run on a federation after its current round; it can be resumed."""
    say(f"run {work.stop_run(server, run)}: it ends after its current round")


def _refuse(options: Mapping[str, object], with_what: str) -> None:
    for name, value in options.items():
        if value:
            raise Refused(f"{name} cannot be used with {with_what}")


@contextlib.contextmanager
def _tidy() -> Iterator[None]:
    """Lets `kill` end this process like Ctrl-C, which removes half-made folders."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _made(folder: Path) -> list[str]:
    settings = read_server(folder / "server").settings
    clients = settings.clients
    last = f" to client-{clients - 1}" if clients > 1 else ""
    served = shlex.quote(str(folder / "server"))
    own = f"{folder}/client-0{last}: one for each client's machine, and for nobody else"
    return [
        f"{folder}: a federation of {clients}, whose clients connect to {settings.superlink}",
        own if clients else f"engram init-federation {folder} --invite: an invitation for a site",
        f"{folder}/server: for the coordinator's machine; engram superlink {served}",
        f"{folder}/ca.key: renews certificates; keep it here, and to yourself",
    ]


def _added(folder: Path, new: Path) -> list[str]:
    return [
        f"{new}: for the new client's machine, and for nobody else",
        f"{folder}/server: for the coordinator's machine again; a server that runs lets it in",
        f"{folder}/client-*/node.toml: for the other clients' machines again, as there is one more",
        *_registry(folder / "server"),
    ]


def _with_new_key(folder: Path, own: Path) -> list[str]:
    return [
        f"{own}: client.key and client.pub for the client's machine, and for nobody else",
        f"{folder}/server/clients: for the coordinator's machine; a server that runs lets the "
        "new key in, and refuses the old one",
        *_registry(folder / "server"),
    ]


def _registry(server: Path) -> list[str]:
    """Returns a line with the fingerprint of the registry, if the authority has signed it here."""
    path = server / REGISTRY
    if not (server.parent / "ca.key").is_file() or not path.is_file():
        return []
    return [f"{path}: {fingerprint(path.read_bytes())}, by which sites know each other"]


def _joined(folder: Path, fingerprint: str, authority: str) -> list[str]:
    return [
        f"{folder}: its key is {fingerprint}",
        f"the authority is {authority}, as the server's operator reads out; else stop here",
        f"{folder}/request: for the server's operator: engram register SERVER_FOLDER request",
        f"then: engram node {shlex.quote(str(folder))}",
    ]


def _renewed(folder: Path, *, moved: bool, authority: bool) -> list[str]:
    lines = [
        "A server that runs with this folder shows it to whoever connects next. If it runs on "
        f"another machine, bring *.crt, *.toml, server.key and registry of {folder} there"
    ]
    if moved:
        lines.append(
            "Nodes that are connected follow by themselves. If the server is to listen at "
            "another port, or on another machine, start it again, or there"
        )
    if authority:
        lines.append(
            f"{folder.parent}/ca.key: another one now; nodes that connect while the former "
            "authority is valid trust the new one by themselves"
        )
    return lines
