"""Clients' parts in the rounds of a run, and the rounds' costs, by its rows."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from engram.runs.run import took_part


class ClientShare(NamedTuple):
    """A client's part in a run."""

    client: int
    name: str  # its number if it has none
    asked: int  # rounds in which it was asked
    took_part: int  # rounds whose model learned from it
    reasons: dict[str, int]  # why it did not take part, and how often; also if it was not asked


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
