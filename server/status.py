"""The nodes of a federation, and the clients' parts in a run, for `engram status`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from engram.link.credentials import read_server
from engram.link.run import status
from engram.link.server.registration import roll
from engram.runs.run import took_part


class Member(NamedTuple):
    """A member of a federation, a client that was one, or one that is invited."""

    name: str  # such as ``client-0``
    # ``invited``, ``registered`` (not on line since the server began), ``online``, ``offline``, or
    # ``unregistered`` (its key is refused for good).
    status: str
    since: str = ""  # when it got this status, in UTC, or until when it is invited; "" if unknown
    at: str = ""  # what its node is at work on


class ClientShare(NamedTuple):
    """A client's part in a run."""

    client: int
    name: str  # its number if it has none
    asked: int  # rounds in which it was asked
    took_part: int  # rounds whose model learned from it
    reasons: dict[str, int]  # why it did not take part, and how often; also if it was not asked


def members(folder: Path, *, patience: float = 0.0) -> list[Member]:
    """Asks a federation's server for its members' nodes.

    ``patience`` is how many seconds to wait for a server that is still starting.

    Raises:
        Refused: If the folder is not in order.
        RunStopped: If the server does not answer.
    """
    folder = read_server(folder).folder
    there = status(folder, patience=patience).members
    found = {number: Member(f"client-{number}", "unregistered") for number in roll(folder).gone}
    for name, member in there.items():
        known = "online" if member.there else "offline" if member.since else "registered"
        began = datetime.fromtimestamp(member.since, UTC)
        since = f"{began:%Y-%m-%d %H:%M:%S}" if member.since else ""
        found[int(name.removeprefix("client-"))] = Member(name, known, since, member.at)
    return [member for _, member in sorted(found.items())]


def participation(rows: Iterable[Mapping[str, Any]]) -> list[ClientShare]:
    """Counts the rounds in which each client was asked, took part, or did not."""
    asked: Counter[int] = Counter()
    learned: Counter[int] = Counter()
    reasons: dict[int, Counter[str]] = {}
    names: dict[str, str] = {}
    ever = set[int]()
    for row in rows:
        names |= row.get("names", {})
        cohort, absent = row.get("cohort", []), row.get("absent", {})
        asked.update(cohort)
        learned.update(took_part(row))
        for client, reason in absent.items():
            reasons.setdefault(int(client), Counter())[reason] += 1
        ever |= (members := {*row.get("members", ())})
        for client in (ever - members) if cohort else ():
            reasons.setdefault(client, Counter())["no member any more"] += 1
    return [
        ClientShare(c, names.get(str(c), str(c)), asked[c], learned[c], dict(reasons.get(c, {})))
        for c in sorted(asked.keys() | reasons.keys())
    ]


def costs(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Adds up the costs of a run's rounds: bytes, and mean seconds of a node.

    All are 0 for runs in one process.
    """
    parts = ("training", "transfer", "waiting")
    kinds = ["bytes-sent", "bytes-received", *(f"seconds-{part}" for part in parts)]
    kept = list(rows)
    return {kind: sum(row[kind] for row in kept if kind in row) for kind in kinds}
