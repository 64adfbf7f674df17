"""Hosts of a run's clients, and the kind of its data, by nodes' answers.

Functions over nodes' answers to the roster query; ``server/roster.py`` waits for these.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Set
from functools import cache
from itertools import chain
from logging import getLogger
from typing import Final

from engram.core.standardization import Moments, Units, comparable, merged
from engram.data.schema.columns import Kind
from engram.guards.noise import secret_noise
from engram.settings.errors import Names, few
from engram.settings.experiment import Experiment
from engram.strategies.running.base import STRATEGIES
from engram.wire.roster import NodeEntry, Roster

_log = getLogger("flwr.engram")

_MOST: Final = 10  # reasons that an error names

Entries = Mapping[int, NodeEntry]  # answers, by node, in the order in which they came


def claims(entry: NodeEntry, everyone: Container[int]) -> dict[int, int]:
    """Returns the run's clients that a node says it hosts, with their numbers of rows."""
    return {client: rows for client, rows in entry.clients.items() if client in everyone}


def short_of_rows(entries: Entries, counted: Set[int]) -> dict[int, str]:
    """Returns those of some clients that have too few rows to take part, and why."""
    each = chain.from_iterable(entry.left_out.items() for entry in entries.values())
    return {client: why for client, why in each if client in counted}


def usual_kind(entries: Entries, everyone: Container[int], usable: Callable[[Kind], bool]) -> Kind:
    """Returns the commonest usable kind of data among nodes with clients of the run.

    If tied, it is that of the node with the lowest client; ``usable`` is asked where kinds differ.
    """
    hosted = {node: claims(entry, everyone) for node, entry in entries.items()}
    ordered = sorted((node for node in hosted if hosted[node]), key=lambda node: min(hosted[node]))
    counts = Counter(entries[node].kind for node in ordered)
    kinds = sorted(counts, key=lambda kind: -counts[kind])  # the first if tied
    wanted = filter(usable, kinds) if len(kinds) > 1 else ()
    return next(chain(wanted, kinds), Kind())


def possible_for(e: Experiment) -> Callable[[Kind], bool]:
    """Returns whether a run of some settings can be of a kind of data, by that kind."""

    @cache
    def possible(claimed: Kind) -> bool:
        roster = Roster([None] * e.num_clients, [0] * e.num_clients, claimed)
        try:
            STRATEGIES[e.own.plug_in].build(e, roster, secret_noise)
        except Exception as error:  # what a node claims must not end the run of the others
            _log.debug("the run cannot be of a kind of data that a node claims", exc_info=error)
            return False
        return True

    return possible


def reasons(why: Mapping[int, str], names: Names) -> str:
    """Returns in words why some clients cannot be asked, with those of a reason together."""
    groups: dict[str, list[int]] = {}
    for client, reason in why.items():
        groups.setdefault(reason, []).append(client)
    told = [f"clients {few(clients, names)}: {reason}" for reason, clients in groups.items()]
    more = f"; ... {len(told)} in all" if len(told) > _MOST else ""
    return "; ".join(told[:_MOST]) + more


def seated(
    hosts: Mapping[int, int],
    entries: Entries,
    nodes: Iterable[int],
    everyone: Container[int],
    *,
    kind: Kind,
    present: Container[int],
) -> dict[int, int]:
    """Returns each client's node after some nodes, in their order, got the clients they may host.

    Of two nodes that claim a client, the first keeps it until it goes offline; then the other gets
    it, if it has as many rows. Nodes with data of another kind get none.
    """
    found = dict(hosts)
    for node in nodes:
        if entries[node].kind != kind:
            continue
        for client, rows in claims(entries[node], everyone).items():
            host = found.get(client)
            gone = host not in present and node in present
            if host is None or (gone and rows == entries[host].clients[client]):
                found[client] = node
    return found


def fitted(
    entries: Entries, nodes: Iterable[int], everyone: Container[int], called: Callable[[int], str]
) -> Units:
    """Returns units by the moments that the clients' nodes tell, merged in their clients' order.

    A node that is left out is ``called`` by its name in a warning.
    """
    ordered = sorted(nodes, key=lambda node: min(claims(entries[node], everyone)))
    inputs, targets = (
        merged(_told(name, entries, ordered, called)) for name in ("inputs", "targets")
    )
    return Units(inputs and inputs.standard(), targets and targets.standard())


def _told(
    name: str, entries: Entries, ordered: Iterable[int], called: Callable[[int], str]
) -> list[Moments]:
    each = ((node, getattr(entries[node].told, name)) for node in ordered)
    told = [(node, moments) for node, moments in each if moments is not None]
    fits = comparable([moments for _, moments in told])
    for node in (node for (node, _), fit in zip(told, fits, strict=True) if not fit):
        _log.warning(
            "%s has no part in the units of the run's %s: what it tells of its own is of "
            "another number of columns, or more than a million times as large as others'",
            called(node),
            name,
        )
    return [moments for (_, moments), fit in zip(told, fits, strict=True) if fit]
