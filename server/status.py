"""The nodes of a federation, and the clients' parts in a run, for `engram status`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from engram.link.credentials import read_server
from engram.link.server.control import ask
from engram.link.server.registration import names
from engram.runs.run import took_part
from engram.wire.counters import silence

STARTER, FLEET = "superexec.alive", "fleet.alive"  # files in ``FLWR_HOME``, touched as they answer


class Member(NamedTuple):
    """A node that a SuperLink knows, or a client that is invited."""

    name: str  # its client, such as ``client-0``; empty if unknown
    node_id: int  # its Flower node id; 0 if it is invited
    # ``invited``, ``registered`` (it has never connected), ``online``, ``offline`` or
    # ``unregistered`` (its key is refused for good).
    status: str
    # When it got this status, in UTC, or until when it is invited; empty if it never connected.
    since: str


class ClientShare(NamedTuple):
    """A client's part in a run."""

    client: int
    name: str  # its number if it has none
    asked: int  # rounds in which it was asked
    took_part: int  # rounds whose model learned from it
    reasons: dict[str, int]  # why it did not take part, and how often; also if it was not asked


def members(folder: Path, *, control: str | None = None) -> list[Member]:
    """Asks a federation's SuperLink for its nodes.

    Raises:
        Refused: If the folder is not in order.
        RunStopped: If the SuperLink cannot be reached, or declines.
    """
    called = names(read_server(folder).folder)
    answer = ask(folder, "supernode", "list", control=control, what="the nodes")
    found = []
    for node in answer["nodes"]:
        times = {"online": "online-at", "offline": "offline-at", "unregistered": "deleted-at"}
        number, status = int(node["node-id"]), str(node["status"])
        when = str(node.get(times.get(status, ""), "N/A"))
        found.append(Member(called.get(number, ""), number, status, "" if when == "N/A" else when))
    return sorted(found)


def silent_parts(folder: Path) -> str:
    """Returns a line on the parts of a SuperLink without signs of life; "" if all show some."""
    parts = {STARTER: "what starts runs", FLEET: "what nodes connect to"}
    told = (silence(folder / "flwr" / p, f"no sign of life of {of}") for p, of in parts.items())
    return "; ".join(filter(None, told))


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
