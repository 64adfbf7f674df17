"""``engram doctor``: faults of a node's or a server's folder, with remedies."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from engram.cli.console import out
from engram.cli.options import Json
from engram.client.disk_memory import DiskStore
from engram.client.encrypted_file import read_key
from engram.link.credentials import NodeCredentials, read_node, read_server, renewal
from engram.link.keys import read_certificates
from engram.link.node.errands import greet
from engram.link.node.node import silence
from engram.link.node.refusals import Gone, KeyRefused, Unreachable
from engram.link.server.registration import roll
from engram.server.status import members
from engram.settings.errors import EngramError, Refused, RunStopped, few_names
from engram.settings.files import is_locked, stats_below
from engram.sites.record_faults import faults
from engram.wire.clock import in_words, now

_SOON: Final = timedelta(days=30)  # until a certificate expires
_ROOM: Final = 2**30  # bytes that a disk should have left
_AHEAD: Final = 60.0  # seconds by which a file may have been written in the future

app = typer.Typer()


class Finding(NamedTuple):
    """Outcome of one check."""

    about: str
    ok: bool  # whether it is in order
    text: str  # what there is; of something that is not in order, what to do as well


@app.command()
def doctor(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A federation's `server`, or a client's.")
    ],
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The node's --state; by default FOLDER/state."),
    ] = None,
    memory_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The node's --memory-key.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a server's or a client's folder, with a remedy for each fault."""
    found = []
    for finding in look_over(folder, state=state, memory_key=memory_key):
        found.append(finding)
        if not as_json:
            word = "ok   " if finding.ok else "WRONG"
            out.print(f"{word}  {finding.about:<12}  {finding.text}", soft_wrap=True)
    if as_json:
        print(json.dumps([finding._asdict() for finding in found]))
    wrong = [finding.about for finding in found if not finding.ok]
    if wrong:
        raise RunStopped(f"{len(wrong)} of {len(found)} are not in order: {', '.join(wrong)}")


def look_over(
    folder: Path,
    *,
    state: Path | None = None,
    memory_key: Path | None = None,
    at: datetime | None = None,
) -> Iterator[Finding]:
    """Yields findings about a folder, one after the other; changes nothing.

    Certificates are to be valid ``at`` a time with a zone; now, if None.

    Raises:
        Refused: It is neither a server's nor a client's folder.
    """
    if (folder / "federation.toml").is_file():
        yield from _server(folder, at or now())
    elif (folder / "node.toml").is_file():
        yield from _node(folder, state or folder / "state", memory_key, at or now())
    else:
        raise Refused(
            f"{folder} has neither federation.toml nor node.toml: name a federation's `server`, or "
            "a client's folder"
        )


def _tried(about: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(about, True, look())
    except EngramError as error:
        return Finding(about, False, str(error))


# --- The server --------------------------------------------------------------------------------


def _server(folder: Path, at: datetime) -> Iterator[Finding]:
    yield _tried("keys", lambda: _server_keys(folder, at))
    yield _tried("disk", lambda: _disk(folder))
    yield _tried("clock", lambda: _clock(folder))
    yield _tried("superlink", lambda: _superlink(folder))


def _server_keys(folder: Path, at: datetime) -> str:
    found = read_server(folder, at=at)  # checks modes, pairs and dates
    listed, clients = roll(folder), len(found.public_keys)
    known = listed.members | listed.invited | listed.gone
    if lacking := {*range(found.settings.clients)} - known:
        named = few_names(f"client-{number}" for number in sorted(lacking))
        raise Refused(f"{folder}/clients lacks the .pub of {named}: bring it here")
    ends, until = found.tls.expires, _end(found.tls.root_certificate)
    soon = []
    if ends - at < _SOON:
        soon.append(f"{found.tls.certificate} expires on {ends:%Y-%m-%d}: {renewal(folder)}")
    if until - at < _SOON:
        soon.append(
            f"{found.tls.root_certificate}, the authority's, expires on {until:%Y-%m-%d}: "
            f"{renewal(folder)} --new-authority, while the clients' nodes run"
        )
    if soon:
        raise Refused(*soon)
    return (
        f"of {clients} clients; certificate for {', '.join(found.tls.hosts)} to {ends:%Y-%m-%d}, "
        f"authority to {until:%Y-%m-%d}"
    )


def _end(root: Path) -> datetime:
    return max(certificate.not_valid_after_utc for certificate in read_certificates(root))


def _superlink(folder: Path) -> str:
    by_status: dict[str, list[str]] = {}
    for member in members(folder):
        by_status.setdefault(member.status, []).append(member.name)
    told = (f"{status}: {few_names(names)}" for status, names in by_status.items())
    return "; ".join(told) or "it answers, and has no members yet"


# --- A node ------------------------------------------------------------------------------------


def _node(folder: Path, state: Path, memory_key: Path | None, at: datetime) -> Iterator[Finding]:
    yield _tried("keys", lambda: _node_keys(read_node(folder, at=at), at))
    yield _tried("memories", lambda: _memories(state / "memory", memory_key))
    for about, fault in faults(folder, state).items():
        yield Finding(about, not fault, fault or "none of its lines was changed")
    yield _tried("disk", lambda: _disk(state if state.is_dir() else folder))
    yield _tried("clock", lambda: _clock(folder, state))
    yield _tried("node", lambda: _running(folder, state))
    yield _tried("superlink", lambda: _reached(read_node(folder)))


def _node_keys(found: NodeCredentials, at: datetime) -> str:
    ends = _end(found.root_certificate)
    if ends - at < _SOON:
        raise Refused(
            f"{found.root_certificate} expires on {ends:%Y-%m-%d}: on the server, engram renew "
            "SERVER_FOLDER --new-authority; this node takes the new one while it runs"
        )
    return (
        f"of client {found.partition_id}; the authority's certificate is valid to {ends:%Y-%m-%d}"
    )


def _memories(root: Path, key: Path | None) -> str:
    secret, count, wrong = read_key(key) if key else None, 0, []
    for training in sorted(path for path in root.glob("*") if path.is_dir()):
        store = DiskStore(training, key=secret)
        for client in store.clients():
            reads: list[Callable[[], object]]
            reads = [partial(store.read, client, version) for version in store.versions(client)]
            reads += [partial(store.load_serving, client)] if store.serving(client) else []
            for read in reads:
                count += 1
                try:
                    read()
                except EngramError as error:
                    wrong.append(str(error))
    if wrong:
        raise Refused(*wrong[:3], *([f"{len(wrong)} in all"] if len(wrong) > 3 else []))
    return f"{count}, all as they were written"


def _running(folder: Path, state: Path) -> str:
    if not (state / "lock").exists() or not is_locked(state / "lock"):
        return f"none is running: engram node {folder}"
    if fault := silence(state):
        raise Refused(f"it runs, with {fault}: its log says why")
    return "it runs, and hears of its server"


def _reached(credentials: NodeCredentials) -> str:
    try:
        said = greet(credentials)
    except Unreachable as error:
        raise Refused(f"{error}: start it, or open the way to it") from error
    except Gone:
        raise
    except KeyRefused as error:
        raise Refused(f"{error} On the server: engram register") from error
    node = "its node is connected" if said.connected else "its node is not connected"
    clocks = "" if said.ahead is None else f"; the clocks differ by {in_words(said.ahead)}"
    return f"{credentials.superlink} knows this client; {node}{clocks}"


# --- Both --------------------------------------------------------------------------------------


def _disk(folder: Path) -> str:
    left = shutil.disk_usage(folder).free
    told = f"{left / 2**30:.1f} GiB are free in {folder}"
    if left < _ROOM:
        raise Refused(f"{told}: make room, {_ROOM / 2**30:.0f} GiB at least")
    return told


def _clock(*folders: Path) -> str:
    """Compares the clock with the times of files, which were written in the past."""
    stats = chain.from_iterable(map(stats_below, folders))
    newest = max((stat.st_mtime for stat in stats), default=0.0)
    if (ahead := newest - time.time()) > _AHEAD:
        by = in_words(timedelta(seconds=ahead))
        raise Refused(f"files here were written {by} from now: set the clock, or have NTP do it")
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
