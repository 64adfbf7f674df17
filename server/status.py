"""Who is in a federation, and who took part in a run: what `engram status` shows."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from federation.credentials import read_server
from server.control import ask
from server.registration import names


class Member(NamedTuple):
    """A node that a SuperLink knows."""

    name: str  # its client, such as ``client-0``; empty if that is not known here
    node_id: int  # what Flower calls it
    # ``registered`` (it has not come yet), ``online``, ``offline`` or ``unregistered`` (its key is
    # refused for good).
    status: str
    since: str  # when it came or went, in UTC; empty if it never did


class ClientShare(NamedTuple):
    """A client's part in a run.

    Attributes:
        client: The client.
        name: What it is called: its number, where it has no name.
        asked: Rounds in which it was asked.
        took_part: Rounds whose model learned from it.
        reasons: Why it did not, and how often: when it was asked, or could not be.
    """

    client: int
    name: str
    asked: int
    took_part: int
    reasons: dict[str, int]


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


def participation(rows: Iterable[Mapping[str, Any]]) -> list[ClientShare]:
    """Counts in which rounds of a run every client that was asked, or was absent, took part."""
    asked: Counter[int] = Counter()
    took_part: Counter[int] = Counter()
    reasons: dict[int, Counter[str]] = {}
    names: dict[str, str] = {}
    for row in rows:
        names |= row.get("names", {})
        cohort, absent = row.get("cohort", []), row.get("absent", {})
        asked.update(cohort)
        took_part.update(client for client in cohort if str(client) not in absent)
        for client, reason in absent.items():
            reasons.setdefault(int(client), Counter())[reason] += 1
    return [
        ClientShare(
            client,
            names.get(str(client), str(client)),
            asked[client],
            took_part[client],
            dict(reasons.get(client, {})),
        )
        for client in sorted(asked.keys() | reasons.keys())
    ]


def costs(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Adds up what a run's rounds have cost: bytes, and the mean node's seconds.

    Runs in one process have none of this.
    """
    parts = ("training", "transfer", "waiting")
    kinds = ["bytes-sent", "bytes-received", *(f"seconds-{part}" for part in parts)]
    kept = list(rows)
    return {kind: sum(row[kind] for row in kept if kind in row) for kind in kinds}
