"""A SuperLink for shared machines and untrusted nodes.

Run as ``python -m engram.link.server.superlink``: it is ``flower-superlink``, with that command's
arguments and those below. Its Control API serves the SuperLink's own user only, its Fleet API takes
replies of bounded size, a renewed certificate is shown without a restart, and its database is kept
compact.
"""

import argparse
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from logging import getLogger
from pathlib import Path
from typing import Any

import grpc
import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from engram.core.machine import keep_freed
from engram.link.addresses import parse_address
from engram.link.flower import run_superlink
from engram.link.server.control_access import own_users, private
from engram.link.server.http_fleet import HttpFleet
from engram.link.server.launch import MOST_REPLY
from engram.link.server.live_certificates import (
    Dated,
    grpc_credentials,
    live_announcement,
    live_certificate,
    ssl_context,
)
from engram.server.replies import COUNTED, GuardedFleet
from engram.server.status import FLEET, STARTER, silent_parts
from engram.settings.errors import Refused
from engram.settings.logs import begin_log, uvicorn_log
from engram.wire.counters import Counters, beat, serve_counters, silence

_log = getLogger("flwr.engram")
_LARGEST = 2**24  # bytes of a node's message: app bundles have 10 MB, pieces of models less
_KEPT = 2**20  # bytes of freed memory that a SuperLink keeps
_FLEET = "0.0.0.0:9092"  # where Flower's command listens unless it is told otherwise
_ENDS = 5  # s; a SuperLink that is to end waits so long for answers, which may be streams
_LOOK, _LOST = 5.0, 60  # s between looks at the parts; silent looks after which one has died
_BEGINS = 120.0  # s; a coordinator on a busy machine has not loaded its libraries in Flower's 30
_DATABASE = {  # for each connection, of which a SuperLink has some ten
    "journal_size_limit": str(2**24),  # bytes that the journal keeps when it is empty
    "busy_timeout": "60000",  # ms for a lock; with Flower's 5,000, calls fail on a busy machine
    "cache_size": "-8000",  # KiB
    "mmap_size": "0",
}


def main(arguments: Sequence[str]) -> None:
    """Runs the SuperLink until it is stopped."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--max-reply", type=int, default=MOST_REPLY)
    parser.add_argument("--open-control", action="store_true")
    parser.add_argument("--metrics-port", type=int, default=0)
    parser.add_argument("--database", type=Path, required=True)
    own, others = parser.parse_known_args(arguments)
    begin_log()
    keep_freed(_KEPT, largest=_KEPT)  # a thread for each call would keep the largest that it had
    compact(own.database)
    counters, folder = Counters(COUNTED), own.database.parent
    serve_counters(counters, own.metrics_port, partial(silent_parts, folder))
    run_superlink(
        ["--database", str(own.database), *others],
        serve=serve_anyone if own.open_control else serve,
        superexec=partial(start_watched, folder / "flwr", dict(pairwise(others))),
        fleet=lambda fleet: GuardedFleet(fleet, own.max_reply, counters, folder),
        http_fleet=partial(HttpFleet, most=_LARGEST),
        authentication=Dated
        if "--insecure" in others
        else lambda flower: Dated(flower, live_announcement(folder)),
        credentials=lambda key, certificate: grpc_credentials(live_certificate(folder)),
        largest=_LARGEST,
        pragmas=_DATABASE,
        begins=_BEGINS,
    )


def serve(app: Any, **options: Any) -> None:
    """Serves an app to this process's user alone; ``options`` are those of ``uvicorn.run``."""
    # Without ws="none" a connection could be upgraded to a protocol that does not check its owner.
    serve_anyone(app, **options, http=private(AutoHTTPProtocol, own_users()), ws="none")


def serve_anyone(app: Any, **options: Any) -> None:
    """Serves an app to everyone, without a line in the log for each call."""
    options |= {"log_config": uvicorn_log(), "access_log": False}
    options |= {"timeout_graceful_shutdown": _ENDS}
    if options.get("ssl_certfile"):
        files = [Path(options["ssl_certfile"]), Path(options["ssl_keyfile"])]
        options["ssl_context_factory"] = lambda config, made: ssl_context(files, made)
    uvicorn.run(app, **options)


def start_watched(
    folder: Path, given: Mapping[str, str], command: Sequence[str], **how: Any
) -> subprocess.Popen[bytes]:
    """Starts a SuperExec; this server ends with status 1 if that dies, or is silent for minutes.

    It is ours, with the arguments of Flower's ``command``. ``folder`` is where the SuperLink's
    parts leave signs of life, and ``given`` its options; ``how``, those of ``subprocess.Popen``.
    """
    for name in (STARTER, FLEET):
        beat(folder / name)
    ours = [sys.executable, "-P", "-m", "engram.link.server.superexec", *command[1:]]
    process = subprocess.Popen(ours, **how)
    ended = threading.Event()

    def terminate() -> None:
        """Ends it, as Flower does when the SuperLink ends."""
        ended.set()
        process.send_signal(signal.SIGTERM)

    vars(process)["terminate"] = terminate

    def watch() -> None:
        silent = 0
        while process.poll() is None and silent < _LOST:
            dead = [name for name in (STARTER, FLEET) if silence(folder / name, "silent")]
            silent = silent + 1 if dead else 0
            with contextlib.suppress(Exception):  # whatever fails is no sign of life
                if answers(given):
                    beat(folder / FLEET)
            ended.wait(_LOOK)
        if not ended.wait(2 * _ENDS):  # both may have been told to end
            _log.error("what starts runs has died (%s): start this server again", process.poll())
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    return process


def answers(given: Mapping[str, str]) -> bool:
    """Whether the Fleet API answers a call, if only by a refusal, since nobody has signed it."""
    at = str(parse_address(given.get("--fleet-api-address", _FLEET), "fleet").reached_at)
    options = [("grpc.enable_http_proxy", 0), ("grpc.ssl_target_name_override", "localhost")]
    root = given.get("--ssl-ca-certfile")
    security = root and grpc.ssl_channel_credentials(Path(root).read_bytes())
    dial = partial(grpc.secure_channel, credentials=security) if root else grpc.insecure_channel
    with dial(at, options=options) as channel:
        try:
            channel.unary_unary("/flwr.proto.Fleet/GetRun")(b"", timeout=_LOOK)
        except grpc.RpcError as error:
            return error.code().name not in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
    return True


def compact(database: Path) -> None:
    """Shrinks a SuperLink's database, or makes a new one, and turns on automatic shrinking.

    A new one is its user's alone.

    SQLite does not return deleted rows' space to the disk by default, and an existing database
    can only be changed while nobody uses it.

    Raises:
        Refused: If the file is not a database.
    """
    with contextlib.suppress(OSError):  # else SQLite says why it cannot be written
        database.touch(0o600)
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=1.0)) as connection:
            for statement in ("journal_mode = DELETE", "auto_vacuum = FULL"):
                connection.execute(f"PRAGMA {statement}").fetchall()
            connection.execute("VACUUM")
    except sqlite3.OperationalError as error:  # in use, or the disk is full: serve anyway
        _log.warning("%s is not compacted: %s", database, error)
    except sqlite3.DatabaseError as error:
        raise Refused(
            f"{database} cannot be read ({error}): move it away, start again, and register the "
            "clients again"
        ) from error


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Refused as refusal:
        print(f"engram: {refusal}", file=sys.stderr)
        sys.exit(2)
