"""A SuperLink for shared machines and untrusted nodes.

Run as ``python -m server.superlink``: it is ``flower-superlink``, with that command's arguments and
those below. Its Control API serves the SuperLink's own user only, its Fleet API takes replies of
bounded size, a renewed certificate is shown without a restart, and its database is kept compact.
"""

import argparse
import contextlib
import sqlite3
import sys
from collections.abc import Sequence
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from federation.counters import Counters, serve_counters
from federation.errors import Refused
from federation.flower import run_superlink
from federation.logs import begin_log, uvicorn_log
from federation.machine import keep_freed
from server.callers import own_users, private
from server.dated import Dated
from server.http_fleet import HttpFleet
from server.launch import ReplyLimits
from server.live import grpc_credentials, live_announcement, live_certificate, ssl_context
from server.replies import COUNTED, GuardedFleet

_log = getLogger("flwr.engram")
_LARGEST = (
    2**24
)  # bytes of a message to or from a node: app bundles have 10 MB, pieces of models less
_KEPT = 2**20  # bytes of freed memory that a SuperLink keeps
_BEGINS = 120.0  # s; a coordinator on a busy machine has not loaded its libraries in Flower's 30
_DATABASE = {  # for each connection, of which a SuperLink has some ten
    "journal_size_limit": str(2**24),  # bytes that the journal keeps when it is empty
    "busy_timeout": "60000",  # ms for a lock; with Flower's 5,000, calls fail on a busy machine
    "cache_size": "-8000",  # KiB
    "mmap_size": "0",
}


def main(arguments: Sequence[str]) -> None:
    """Runs the SuperLink until it is stopped."""
    limits = ReplyLimits()
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--max-records", type=int, default=limits.records)
    parser.add_argument("--max-reply", type=int, default=limits.mebibytes)
    parser.add_argument("--open-control", action="store_true")
    parser.add_argument("--metrics-port", type=int, default=0)
    parser.add_argument("--database", type=Path, required=True)
    own, others = parser.parse_known_args(arguments)
    begin_log()
    keep_freed(_KEPT, largest=_KEPT)  # a thread for each call would keep the largest that it had
    compact(own.database)
    counters = Counters(COUNTED)
    serve_counters(counters, own.metrics_port)
    folder = own.database.parent
    run_superlink(
        ["--database", str(own.database), *others],
        serve=serve_anyone if own.open_control else serve,
        superexec=[sys.executable, "-P", "-m", "server.superexec"],
        fleet=lambda fleet: GuardedFleet(
            fleet, ReplyLimits(own.max_records, own.max_reply), counters, folder
        ),
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
    """Serves an app to whoever connects, without a line in the log for each call."""
    options |= {"log_config": uvicorn_log(), "access_log": False}
    if options.get("ssl_certfile"):
        files = [Path(options["ssl_certfile"]), Path(options["ssl_keyfile"])]
        options["ssl_context_factory"] = lambda config, made: ssl_context(files, made)
    uvicorn.run(app, **options)


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
