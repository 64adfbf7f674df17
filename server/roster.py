"""The query that opens every run: who is there, with which clients, running which source."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from logging import getLogger
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from federation.errors import RunStopped, brief, few, one_line
from federation.fingerprint import ROOMS, fingerprint, source_root
from federation.roster import NodeEntry, Roster, Sites, read_entry
from federation.wire import CONFIG, REFUSED, ROSTER_QUERY, TRAINING
from server.grid import PatientGrid

__all__ = ["Movers", "query_roster", "query_sites"]

_log = getLogger("flwr.engram")


def query_roster(
    grid: Grid,
    num_clients: int,
    *,
    training: str = "",
    patience: float = 60,
    timeout: float = 600,
) -> Roster:
    """Asks every node for its clients until each of ``0..num_clients-1`` is hosted.

    Args:
        grid: The nodes.
        num_clients: Clients of the federation.
        training: The training's name, which nodes keep memories under.
        patience: Seconds to wait for a further node before giving up.
        timeout: Seconds that a node has for its answer; it may have to load data first.

    Raises:
        RunStopped: A node runs another source, cannot serve, or has other data than the rest;
            two nodes host the same client; or a client is hosted by none.
    """
    entries, owners = _await(grid, num_clients, None, training, patience, timeout)
    return _roster(entries, owners, num_clients)


def query_sites(
    grid: Grid,
    num_clients: int,
    *,
    least: int,
    columns: Sequence[str] | None = None,
    training: str = "",
    patience: float = 60,
    timeout: float = 600,
) -> tuple[Sites, dict[int, str]]:
    """Asks every node for its clients; those that do not come, or have other columns, are left out.

    Args:
        grid: The nodes.
        num_clients: Clients of the federation.
        least: Clients without whom there is nothing to do.
        columns: What their columns are called, where that is known from before. None: as most
            nodes have them; of as many, as that of the lowest client.
        training: The run's name.
        patience: Seconds to wait for a further node before going on without.
        timeout: Seconds that a node has for its answer.

    Returns:
        The sites that are there, and why each of the others is not.

    Raises:
        RunStopped: They are fewer than ``least``, or two nodes host the same client.
    """
    entries, owners = _await(grid, num_clients, least, training, patience, timeout)
    left_out = {c: "no node hosts it" for c in range(num_clients) if c not in owners}
    held = {c: entries[owners[c]].columns for c in sorted(owners) if c < num_clients}
    if columns is None:
        nodes = dict.fromkeys(owners[client] for client in held)
        counts = Counter(entries[node].columns for node in nodes)  # the first of equals wins
        columns = max(counts, key=lambda names: counts[names]) if counts else ()
    for client, names in held.items():
        if names != tuple(columns):
            left_out[client] = _other_columns(names, tuple(columns))
    there = {client: owners[client] for client in held if client not in left_out}
    if len(there) < least:
        few_reasons = sorted(left_out.items())[:10]
        reasons = "; ".join(f"client {c}: {reason}" for c, reason in few_reasons)
        raise RunStopped(f"{len(there)} of {least} sites can take part; {reasons}")
    rows = {client: entries[node].clients[client] for client, node in there.items()}
    return Sites(there, rows, list(columns)), left_out


def _other_columns(names: tuple[str, ...], columns: tuple[str, ...]) -> str:
    if len(names) != len(columns):
        return f"it has {len(names)} columns, and most sites have {len(columns)}"
    k = next(i for i, (one, other) in enumerate(zip(names, columns, strict=True)) if one != other)
    return f"its column {k} is {brief(names[k])}, and most sites' {brief(columns[k])}"


def _await(
    grid: Grid, num_clients: int, least: int | None, training: str, patience: float, timeout: float
) -> tuple[dict[int, NodeEntry], dict[int, int]]:
    """Waits for all clients, or after ``patience`` seconds without news for ``least`` at least.

    With ``least``, a node that cannot serve is no reason to stop; it is named in a warning.
    """
    entries: dict[int, NodeEntry] = {}
    failed: set[int] = set()
    deadline = time.monotonic() + patience
    while True:
        new = sorted(set(grid.get_node_ids()) - entries.keys() - failed)
        for message, reply in _replies(grid, new, training, timeout) if new else ():
            if reply is None:  # it may be away, and is asked again when it is back
                continue
            node = message.metadata.dst_node_id
            try:
                entries[node] = _read(message, reply)
            except RunStopped as error:
                if least is None:
                    raise
                failed.add(node)
                _log.warning("%s; it takes no part", error)
        if new:
            deadline = time.monotonic() + patience
        owners = _owners(entries)
        missing = [client for client in range(num_clients) if client not in owners]
        late = time.monotonic() > deadline
        if not missing or (late and least is not None and len(owners) >= least):
            return entries, owners
        if late:
            raise RunStopped(
                f"clients {few(missing)} are hosted by none of the {len(entries)} nodes that "
                f"answered in {patience:g} s: start the missing nodes, or lower num-clients"
            )
        time.sleep(0.1)


class Movers:
    """Looks for clients that have moved to other nodes: those without identities get new numbers.

    Args:
        grid: The nodes.
        known: Nodes that are in the roster, and need not be asked.
        training: As for ``query_roster``.
    """

    def __init__(self, grid: Grid, known: Iterable[int], training: str) -> None:
        self._grid = grid
        self._known = set(known)
        self._training = training
        self._claims: dict[int, NodeEntry] = {}

    def look(self, roster: Roster, *, timeout: float = 60) -> dict[int, int]:
        """Asks nodes that have joined since for their clients; says who has moved.

        A client moves when its node is away and another one hosts it, with as much data. Whoever
        cannot serve is left alone, with a warning.

        Args:
            roster: Where the clients have been.
            timeout: Seconds to wait for answers.

        Returns:
            The new nodes of clients that have moved.
        """
        new = sorted(set(self._grid.get_node_ids()) - self._known)
        for message, reply in _replies(self._grid, new, self._training, timeout) if new else ():
            if reply is None:
                continue
            node = message.metadata.dst_node_id
            self._known.add(node)
            try:
                self._claims[node] = _read(message, reply)
            except RunStopped as error:
                _log.warning("%s; it takes no part", error)
        if not self._claims:
            return {}
        grid = self._grid  # stragglers have not gone anywhere
        present = grid.on_line() if isinstance(grid, PatientGrid) else set(grid.get_node_ids())
        return {
            client: node
            for node, entry in self._claims.items()
            for client, examples in entry.clients.items()
            if node in present
            and client < len(roster.nodes)
            and roster.nodes[client] not in present
            and roster.examples[client] == examples
        }


def _replies(
    grid: Grid, nodes: list[int], training: str, timeout: float
) -> list[tuple[Message, Message | None]]:
    config = ConfigRecord({"fingerprint": fingerprint(), TRAINING: training})
    query = RecordDict({CONFIG: config})
    messages = [Message(query, dst_node_id=n, message_type=ROSTER_QUERY) for n in nodes]
    replies = {
        r.metadata.reply_to_message_id: r for r in grid.send_and_receive(messages, timeout=timeout)
    }
    return [(message, replies.get(message.metadata.message_id)) for message in messages]


def _read(message: Message, reply: Message) -> NodeEntry:
    node = message.metadata.dst_node_id
    ours = f"this coordinator runs {fingerprint()} from {source_root()}"
    if reply.has_error():
        reason = one_line(_last_line(reply.error.reason or ""))
        if reply.error.code == REFUSED:  # our source, which says what is wrong
            raise RunStopped(f"node {node} cannot serve this run: {reason}")
        raise RunStopped(f"node {node} cannot serve this run: {reason}{_decoy()}; {ours}")
    try:
        entry = read_entry(reply.content)
    except ValueError as error:
        raise RunStopped(f"node {node} runs something else ({error}){_decoy()}; {ours}") from error
    if entry.fingerprint != fingerprint():
        theirs = one_line(f"{entry.fingerprint} from {entry.source}")
        raise RunStopped(f"node {node} runs {theirs}; {ours}")
    return entry


def _owners(entries: dict[int, NodeEntry]) -> dict[int, int]:
    owners: dict[int, int] = {}
    for node, entry in entries.items():
        for client in entry.clients:
            if client in owners:
                raise RunStopped(
                    f"client {client} is hosted by two nodes, {owners[client]} and {node}: give "
                    "each node a partition-id of its own"
                )
            owners[client] = node
    return owners


def _roster(entries: dict[int, NodeEntry], owners: dict[int, int], num_clients: int) -> Roster:
    kinds = {(entry.input_shape, entry.num_classes) for entry in entries.values()}
    if len(kinds) > 1:
        raise RunStopped(f"nodes hold data of different kinds, (shape, classes): {sorted(kinds)}")
    ((input_shape, num_classes),) = kinds
    nodes = [owners[client] for client in range(num_clients)]
    examples = [entries[node].clients[client] for client, node in enumerate(nodes)]
    _log.info("roster: %d clients on %d nodes, all running this source", num_clients, len(entries))
    return Roster(nodes, examples, input_shape, num_classes)


def _decoy() -> str:
    """Points at folders that a Ray worker would import instead of ours: it looks there first."""
    here = Path.cwd()
    decoys = [str(here / room) for room in ROOMS if (here / room).is_dir()]
    if here == source_root() or not decoys:
        return ""
    return f" (a worker started in {here} imports {', '.join(decoys)} first)"


def _last_line(reason: str) -> str:
    lines = [line.strip() for line in reason.splitlines() if line.strip(" '>\t")]
    return lines[-1] if lines else "no reason given"
