"""Prepares the coordinator's processes: the SuperLink, and the ``flwr`` command for it."""

import errno
import json
import os
import socket
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from engram.link.addresses import CONTROL, Address, as_ip, direct, parse_address
from engram.link.credentials import ServerCredentials, read_server, renewal
from engram.link.server.control_access import SOCKETS
from engram.runs.folders import replace_file
from engram.settings.errors import Refused
from engram.settings.process_starts import SAFE

MOST_REPLY = 1024
"""MiB that a client's reply may have unless a SuperLink is told otherwise."""

_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
# Would open a second Control API, on all interfaces and without a password.
_UNWANTED = "FLWR_INTERNAL_GRPC_CONTROL_API"


class Launch(NamedTuple):
    """Command of a process, for ``subprocess.Popen(argv, env=env, cwd=cwd)`` or ``os.execve``."""

    argv: list[str]  # the program's absolute path and its arguments
    env: dict[str, str]  # its whole environment
    cwd: Path  # its working directory


def program(name: str, *arguments: str, home: Path, hosts: Sequence[str] = ()) -> Launch:
    """Prepares one of Flower's programs, or `engram` itself, without starting it.

    Args:
        name: Its name, such as ``flower-superlink``; it and the programs it starts are taken from
            this interpreter's environment.
        arguments: Its arguments.
        home: Its private ``FLWR_HOME``. The working directory is ``empty`` beside it, since a
            process imports from its working directory first. Both are made.
        hosts: Hosts of the federation that it connects to, besides this machine: no proxy of the
            environment is between, unless ``direct`` says otherwise.

    Raises:
        Refused: If the program is not installed, a folder cannot be made, or the working directory
            holds something that would be run instead of this source.
    """
    found = Path(sys.executable).parent / name
    if not found.is_file():
        raise Refused(f"{found} is not there: install Engram and Flower into this environment")
    home = home.absolute()
    cwd = home.with_name("empty")
    try:
        home.mkdir(mode=0o700, exist_ok=True)
        cwd.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise Refused(f"{error.filename} cannot be made: {error.strerror}") from error
    if (cwd / "engram").exists() or (cwd / "engram.py").exists():
        raise Refused(f"{cwd} must have no engram in it, which would run instead of ours")
    environment = {key: value for key, value in os.environ.items() if key != _UNWANTED}
    path = os.pathsep.join([str(found.parent), environment.get("PATH", os.defpath)])
    own = _QUIET | SAFE | direct(environment, *hosts) | {"FLWR_HOME": str(home), "PATH": path}
    return Launch([str(found), *arguments], environment | own, cwd)


_SOON = timedelta(days=30)


class Addresses(NamedTuple):
    """Where a SuperLink listens."""

    fleet: Address  # for clients
    control: Address  # for users, who start runs and register clients, and for the runs' apps


def superlink_command(
    folder: Path,
    *,
    fleet: str | None = None,
    control: str | None = None,
    open_control: bool = False,
    max_reply: int = MOST_REPLY,
) -> Launch:
    """Prepares a SuperLink, Flower's behind our guards, without starting it.

    It serves clients over TLS if their keys are registered; in an insecure federation it serves
    anyone. It keeps its state, including the registered keys, in ``superlink.db`` in the folder.

    Args:
        folder: The coordinator's folder.
        fleet: HOST:PORT where it listens for clients. By default the port that they connect to, on
            the loopback interface if clients connect to it, and else on all interfaces.
        control: HOST:PORT where it listens for users; by default ``CONTROL``.
        open_control: Let anyone who can connect to ``control`` start programs here, not only this
            process's user and root on this machine.
        max_reply: MiB that a client's reply may have.

    Raises:
        Refused: If the folder, an address, or the installation is not in order, or if nobody could
            use the Control API without ``open_control``.
    """
    credentials = read_server(folder)
    at = superlink_addresses(credentials, fleet=fleet, control=control)
    if not open_control:
        _check_private(at.control)
    security = ["--insecure"]
    if credentials.tls:
        security = [
            *("--ssl-ca-certfile", str(credentials.tls.root_certificate)),
            *("--ssl-certfile", str(credentials.tls.certificate)),
            *("--ssl-keyfile", str(credentials.tls.private_key)),
            "--enable-supernode-auth",
        ]
    return program(
        "python",
        # -P: nothing is imported from the working directory
        *("-P", "-m", "engram.link.server.superlink"),
        *("--max-reply", str(max_reply)),
        *(["--open-control"] if open_control else []),
        *security,
        *("--fleet-api-address", str(at.fleet)),
        *("--host", at.control.host, "--port", str(at.control.port)),
        *("--database", str(credentials.folder / "superlink.db")),
        *("--isolation", "subprocess", "--disable-runtime-dependency-installation"),
        home=credentials.folder / "flwr",
        hosts=[at.control.reached_at.host],  # to which the runs' apps connect
    )


def flwr_command(folder: Path, *arguments: str, control: str | None = None) -> Launch:
    """Prepares Flower's own ``flwr`` command for a federation's SuperLink.

    The default connection, named after the federation, is written to ``flwr/config.toml`` in the
    folder. ``control`` is HOST:PORT of the SuperLink's Control API; by default ``CONTROL``.

    Raises:
        Refused: If the folder, the address, or the installation is not in order.
    """
    credentials = read_server(folder)
    address = parse_address(control or CONTROL, "control").reached_at
    _check_host(credentials, address)
    home = credentials.folder / "flwr"
    launch = program("flwr", *arguments, home=home, hosts=[address.host])
    name = credentials.settings.federation
    lines = ["[superlink]", f'default = "{name}"', f"[superlink.{name}]", f'address = "{address}"']
    if credentials.tls:
        root = json.dumps(str(credentials.tls.root_certificate), ensure_ascii=False)
        lines.append(f"root-certificates = {root}")
    else:
        lines.append("insecure = true")
    replace_file(credentials.folder / "flwr" / "config.toml", "\n".join([*lines, ""]).encode())
    return launch


def superlink_addresses(
    credentials: ServerCredentials, *, fleet: str | None = None, control: str | None = None
) -> Addresses:
    """Addresses of a SuperLink that ``superlink_command`` starts.

    Raises:
        Refused: If an address is malformed, or not one that the certificate is for.
    """
    called = parse_address(credentials.settings.superlink, "superlink")
    found = Addresses(
        parse_address(fleet, "fleet") if fleet else _all_interfaces(called),
        parse_address(control or CONTROL, "control"),
    )
    if found.fleet.port == found.control.port:
        raise Refused(f"fleet and control must have ports of their own, got {found.fleet.port}")
    _check_host(credentials, found.control)
    return found


def check_free(address: Address, option: str) -> None:
    """Checks that this process can listen at an address.

    Raises:
        Refused: If it cannot; ``option`` is named as the way to choose another address.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            cause = f"port {address.port} is taken: end what listens there"
        else:
            cause = f"nothing can listen at {address} ({error.strerror})"
        raise Refused(f"{cause}, or give another one with {option}") from error


def warnings(
    credentials: ServerCredentials, at: Addresses, *, open_control: bool = False
) -> list[str]:
    """Warnings at the start of a SuperLink, one line each."""
    found, settings, tls = [], credentials.settings, credentials.tls
    if settings.insecure:
        found.append(
            f"{settings.federation} is insecure: nothing is encrypted, and anyone who reaches "
            f"{at.fleet} can take part in its runs"
        )
    if open_control:
        found.append(
            f"anyone who reaches {at.control} can run programs here as this user: --open-control "
            "turns off authentication"
        )
    if tls and tls.expires - datetime.now(UTC) < _SOON:
        found.append(
            f"{tls.certificate} expires on {tls.expires:%Y-%m-%d}: {renewal(credentials.folder)}"
        )
    return found


def _all_interfaces(called: Address) -> Address:
    """Returns where to listen for clients of an address: all interfaces, unless it is loopback."""
    ip = as_ip(called.host)
    if called.is_loopback:
        return called if ip else called._replace(host="127.0.0.1")
    return called._replace(host="::" if ip and ip.version == 6 else "0.0.0.0")


def _check_private(control: Address) -> None:
    """Refuses a private Control API where it could not serve its own user, or nobody else calls."""
    if not control.is_loopback:
        from engram.link.flower import nodes_over_http  # noqa: PLC0415 - takes a second

        if not nodes_over_http():
            raise Refused(
                f"--control must be a loopback address, such as {CONTROL}, got {control}: only "
                "this user's programs on this machine are let in, unless --open-control lets in "
                "everybody"
            )
    if not any(table.is_file() for table in SOCKETS):
        raise Refused(
            f"this system has no {SOCKETS[0]}, which says whose a connection is: start the "
            "SuperLink with --open-control if nobody else uses this machine"
        )


def _check_host(credentials: ServerCredentials, control: Address) -> None:
    host, tls = control.reached_at.host, credentials.tls
    if tls and host not in tls.hosts:
        raise Refused(
            f"{tls.certificate} is for {', '.join(tls.hosts)}, not for {host}, the host of "
            f"--control: {renewal(credentials.folder)} --host {host}"
        )
