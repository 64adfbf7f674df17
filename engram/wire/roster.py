"""Nodes' descriptions of themselves, and the roster of clients compiled from them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from engram.core.standardization import Moments
from engram.data.federated import check, size
from engram.data.schema.columns import MOST_ROWS, Kind, Schema, Told
from engram.data.tokenizers import LONGEST
from engram.scoring.score_columns import LARGEST
from engram.settings.errors import UNNAMED, Names, brief, one_line
from engram.settings.fingerprint import fingerprint, source_root
from engram.wire.messages import Content, Entries
from engram.wire.wire import (
    APPROVAL,
    COLUMNS,
    OWN_DATA,
    RELEASE,
    ROSTER,
    floats_of,
    read_int,
    read_list,
)

_T = TypeVar("_T")

_MOST_CLIENTS = 2**31
_NOTHING: Final = Told()


class NodeEntry(NamedTuple):
    """One node's answer to the roster query."""

    fingerprint: str  # digest of the source that it runs
    source: str  # folder of this source
    clients: dict[int, int]  # number of training rows of each client that it hosts
    kind: Kind  # of its data
    names: Names = UNNAMED  # of the clients that have one
    left_out: Mapping[int, str] = {}  # clients that take no part, for too few rows, and why
    unscored: Mapping[int, str] = {}  # clients that train, but are not scored, and why
    told: Told = Told()  # moments of its training rows
    table: bytes | None = None  # its ``DescribedTable``, sealed for the one who asks for it
    approval: bool = False  # whether its site approves each run before it takes part
    own_data: bool = False  # whether its rows are its own data set, not a share of the run's
    release: bool = False  # whether its site wants models exported with a release only


class Roster(NamedTuple):
    """The clients of a federation."""

    # For each client 0..n-1, the node that hosts it; None if none has joined yet.
    nodes: Sequence[int | None]
    # For each client, its number of training rows; 0 if it has not joined yet.
    examples: Sequence[int]
    kind: Kind = Kind()  # kind of their data
    names: Names = UNNAMED  # names of the clients that have one
    # Clients that train, but have too few rows to be scored, and why.
    unscored: Mapping[int, str] = {}
    own_data: int = 0  # number of clients whose rows are their nodes' own data sets

    def to_row(self) -> dict[str, Any]:
        """Returns the clients' entries in the first row of a run's record."""
        names = {str(client): name for client, name in self.names.items()}
        told = {"names": names, OWN_DATA: self.own_data}
        return {**self.kind.to_json(), **{key: value for key, value in told.items() if value}}

    def by_node(self, clients: Sequence[int]) -> Mapping[int, list[int]]:
        """Groups the given clients that have joined by node, both in ascending order."""
        hosts = ((client, self.nodes[client]) for client in clients)
        return _by_node((client, node) for client, node in hosts if node is not None)

    def sites(self) -> "Sites":
        """Returns the clients that have joined, as sites with tables."""
        nodes = {c: node for c, node in enumerate(self.nodes) if node is not None}
        rows = {client: self.examples[client] for client in nodes}
        return Sites(nodes, rows, list(self.kind.columns), self.names)


class Sites(NamedTuple):
    """The sites that take part in an exchange of estimates."""

    nodes: Mapping[int, int]  # the node that hosts each client
    rows: Mapping[int, int]  # each client's number of training rows
    columns: list[str]  # names of their tables' columns
    names: Names = UNNAMED  # of the sites that have one

    def by_node(self) -> Mapping[int, list[int]]:
        """Returns the clients grouped by their nodes, both in ascending order."""
        return _by_node(self.nodes.items())


def _by_node(hosts: Iterable[tuple[int, int]]) -> Mapping[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for client, node in sorted(hosts):
        groups.setdefault(node, []).append(client)
    return dict(sorted(groups.items()))


def describe_node(
    clients: Mapping[int, int],
    kind: Kind,
    names: Names = UNNAMED,
    *,
    left_out: Mapping[int, str] = {},
    unscored: Mapping[int, str] = {},
    told: Told = _NOTHING,
    table: bytes | None = None,
) -> Content:
    """Returns this process's answer to the roster query; see ``NodeEntry``."""
    named = [client for client in (*clients, *left_out) if client in names]
    entry: dict[str, Any] = {"fingerprint": fingerprint(), "source": str(source_root())}
    entry |= {"clients": list(clients), "examples": list(clients.values())}
    entry |= {"inputs": kind.inputs, "outputs": kind.outputs, "classes": list(kind.classes)}
    entry |= {"schema": kind.schema.told() if kind.schema else ""}
    entry |= {"named": named, "names": [names[client] for client in named]}
    for key, why in (("left-out", left_out), ("unscored", unscored)):
        entry |= {key: list(why), f"{key}-reasons": list(why.values())}
    entry |= told.to_config() | ({COLUMNS: table} if table else {})
    return {ROSTER: entry}


def read_entry(content: Content) -> NodeEntry:
    """Reads an answer.

    Raises:
        KeyError: If an entry is missing.
        TypeError, ValueError: If it is something else.
    """
    entry = content[ROSTER]
    clients, examples = read_list(entry, "clients", int), read_list(entry, "examples", int)
    if not all(0 < rows < MOST_ROWS for rows in examples):
        raise ValueError(f"rows must be in 1..{MOST_ROWS - 1}")
    inputs, targets = (_moments(entry, name) for name in ("inputs", "targets"))
    kind, told = _kind(entry), Told(inputs, targets, _words(entry, sum(examples)))
    numbers = size(kind.inputs)
    if told.inputs and len(told.inputs.means) != numbers:
        raise ValueError(f"moments of inputs must be of {numbers} columns")
    if told.targets and len(told.targets.means) not in (1, kind.outputs):
        raise ValueError(f"moments of targets must be of 1 or {kind.outputs} columns")
    hosted = _each(clients, examples)
    for part, each in ((told.inputs, 1), (told.targets, max(1, kind.outputs))):
        if part and part.rows > each * sum(examples):
            raise ValueError(f"moments must be of its {sum(examples)} rows, got {part.rows}")
    left_out, unscored = (_reasons(entry, key) for key in ("left-out", "unscored"))
    if left_out.keys() & hosted.keys() or not unscored.keys() <= hosted.keys():
        raise ValueError("clients left out must be others than it hosts, and unscored ones not")
    names = _each(read_list(entry, "named", int), read_list(entry, "names", str))
    if not names.keys() <= {*hosted, *left_out}:
        raise ValueError("names must be of clients that it hosts")
    table = entry.get(COLUMNS)
    if not isinstance(table, bytes | None):
        raise TypeError(f"a table must be sealed in bytes, got {brief(table)}")
    runs = str(entry["fingerprint"]), str(entry["source"])
    site = (bool(entry.get(key)) for key in (APPROVAL, OWN_DATA, RELEASE))
    return NodeEntry(*runs, hosted, kind, names, left_out, unscored, told, table, *site)


def _kind(entry: Entries) -> Kind:
    inputs, outputs = str(entry["inputs"]), read_int(entry, "outputs")
    if inputs:
        check(inputs)
    if not 0 <= outputs < MOST_ROWS:
        raise ValueError(f"outputs must be in 0..{MOST_ROWS - 1}, got {brief(outputs)}")
    classes = tuple(read_list(entry, "classes", str))
    schema = Schema.from_json(text) if (text := str(entry["schema"])) else None
    if inputs and schema and len(schema.inputs) != size(inputs):
        raise ValueError(f"a schema must have {size(inputs)} inputs, got {len(schema.inputs)}")
    return Kind(inputs, outputs, classes, schema)


def _each(clients: list[int], values: list[_T]) -> dict[int, _T]:
    """Returns each client's value; clients must be different numbers, each with a value."""
    found = dict(zip(clients, values, strict=False))
    if not len(found) == len(clients) == len(values) or not all(
        0 <= client < _MOST_CLIENTS for client in clients
    ):
        numbers = f"different numbers in 0..{_MOST_CLIENTS - 1}, each with a value"
        raise ValueError(f"clients must be {numbers}, got {brief(clients)} with {brief(values)}")
    return found


def _reasons(entry: Entries, key: str) -> dict[int, str]:
    clients, reasons = read_list(entry, key, int), read_list(entry, f"{key}-reasons", str)
    return {client: one_line(reason) for client, reason in _each(clients, reasons).items()}


def _words(entry: Entries, rows: int) -> dict[str, int] | None:
    if "words" not in entry:
        return None
    words, counts = read_list(entry, "words", str), read_list(entry, "word-rows", int)
    found = dict(zip(words, counts, strict=False))
    if not len(found) == len(words) == len(counts) or max(map(len, words), default=0) > LONGEST:
        raise ValueError(f"words must be different, of at most {LONGEST} letters, each with rows")
    if not all(0 < count <= rows for count in counts):
        raise ValueError(f"words must be in some of its {rows} rows")
    return found


def _moments(entry: Entries, name: str) -> Moments | None:
    if f"{name}-rows" not in entry:
        return None
    count = read_int(entry, f"{name}-rows")
    means, squares = (floats_of(entry, f"{name}-{what}") for what in ("means", "squares"))
    if not 0 < count < MOST_ROWS or len(means) != len(squares) or min(squares, default=0) < 0:
        raise ValueError(f"moments of {name} must be of rows, each with a sum of squares >= 0")
    # Rows are float32: with larger numbers, what is fitted on all sites' rows would overflow.
    if max(map(abs, means), default=0) > LARGEST or max(squares, default=0) > count * LARGEST**2:
        raise ValueError(f"moments of {name} must be of rows of float32")
    return Moments(count, means, squares)
