"""Nodes' descriptions of themselves, and the roster of clients compiled from them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self, TypeVar

from flwr.app import ConfigRecord, RecordDict

from engram.units import Moments, Units
from federation.columns import LARGEST
from federation.errors import UNNAMED, brief, few_names, one_line
from federation.fingerprint import fingerprint, source_root
from federation.names import Names
from federation.shapes import check, size
from federation.wire import ROSTER, floats_of, read_int, read_list

__all__ = ["Kind", "NodeEntry", "Roster", "Sites", "Told", "describe_node", "read_entry"]

_T = TypeVar("_T")

_MOST_ROWS = 2**31  # rows are weights: a client must have fewer
_MOST_CLIENTS = 2**31


class Kind(NamedTuple):
    """The kind of data that a node has, the same for all nodes of a run.

    Attributes:
        inputs: Dtype and shape of an input row, see ``federation.shapes``; empty for tables.
        outputs: Number of classes, or of values or labels to predict; 0 for tables.
        columns: Names of a table's columns, in their order.
        classes: Names of classes, in their order; empty where their numbers are their names.
        features: Names of the inputs of a row, where these are columns of a table, each value of
            text as NAME=VALUE.
        units: Units of inputs and targets, which a run fits once. Nodes' own kinds have none.
    """

    inputs: str = ""
    outputs: int = 0
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    units: Units = Units()

    @property
    def class_names(self) -> list[str]:
        """Names of its classes, or their numbers; or those of values, labels or tokens."""
        return list(self.classes or map(str, range(self.outputs)))

    def to_row(self) -> dict[str, Any]:
        """Returns its entries in the first row of a run's record."""
        if self.columns:
            return {"columns": list(self.columns)}
        named: dict[str, Any] = {"classes": list(self.classes), "features": list(self.features)}
        named = {
            name: part for name, part in (named | {"units": self.units.to_json()}).items() if part
        }
        return {"inputs": self.inputs, "outputs": self.outputs, **named}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Kind | None":
        """Reads what ``to_row`` wrote; returns None if it is not there."""
        if "columns" in row:
            return cls(columns=tuple(row["columns"]))
        if "inputs" in row:
            lists = {name: tuple(row.get(name, ())) for name in ("classes", "features")}
            units = Units.from_json(row.get("units", {}))
            return cls(row["inputs"], row["outputs"], **lists, units=units)
        return None

    def to_json(self) -> dict[str, Any]:
        """Returns what ``from_json`` reads."""
        return self._asdict() | {"units": self.units.to_json()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Reads what ``to_json`` returned; earlier versions wrote less."""
        named = ("columns", "classes", "features")
        lists = {name: tuple(found.get(name, ())) for name in named}
        return cls(**{**found, **lists, "units": Units.from_json(found.get("units", {}))})

    def unlike(self, most: "Kind") -> str:
        """Describes how it differs from the kind that most nodes have."""
        its, usual = set(self.features), set(most.features)
        if its and usual and its != usual:
            lacking, more = few_names(sorted(usual - its)), few_names(sorted(its - usual))
            return f"it lacks the inputs {lacking or 'none'}, and has {more or 'none'} besides"
        if bool(its) != bool(usual) and self.inputs == most.inputs:
            one, other = ("have", "lack") if its else ("lack", "have")
            named = f"{few_names(self.features or most.features)} (in .npz files, x_names)"
            return f"its inputs {one} names, and most nodes' {other} them: {named}"
        if its == usual and self.features != most.features:
            order = f"{few_names(self.features)}, and most nodes' {few_names(most.features)}"
            return f"its inputs are in the order {order}: set input-columns to one order for all"
        if not (self.columns and most.columns) or self.columns == most.columns:
            return f"it has {self._in_words()}, and most nodes have {most._in_words()}"
        if len(self.columns) != len(most.columns):
            return f"it has {len(self.columns)} columns, and most sites have {len(most.columns)}"
        pairs = enumerate(zip(self.columns, most.columns, strict=True))
        k, (one, other) = next((k, pair) for k, pair in pairs if pair[0] != pair[1])
        return f"its column {k} is {brief(one)}, and most sites' {brief(other)}"

    def _in_words(self) -> str:
        table = f"a table of {len(self.columns)} columns"
        if self.columns and self == Kind(columns=self.columns):
            return table
        named = f" ({few_names(self.classes)})" if self.classes else ""
        rows = f"inputs {one_line(self.inputs)} and {brief(self.outputs)} outputs{named}"
        return f"{table}, {rows}" if self.columns else rows


class Told(NamedTuple):
    """Moments of a node's training rows, which a run's units are fitted on.

    Attributes:
        inputs: Those of columns of inputs; None if the run does not standardize them together.
        targets: Those of targets; None likewise.
    """

    inputs: Moments | None = None
    targets: Moments | None = None

    def to_config(self) -> dict[str, int | list[float]]:
        """Returns its entries in the answer to the roster query."""
        found: dict[str, int | list[float]] = {}
        for name, part in self._asdict().items():
            if part is not None:
                found |= {f"{name}-rows": part.rows, f"{name}-means": list(part.means)}
                found |= {f"{name}-squares": list(part.squares)}
        return found

    @classmethod
    def from_config(cls, entry: ConfigRecord) -> Self:
        """Reads what ``to_config`` returned.

        Raises:
            KeyError, TypeError, ValueError: If it is something else.
        """
        return cls(*(_moments(entry, name) for name in cls._fields))


def _moments(entry: ConfigRecord, name: str) -> Moments | None:
    if f"{name}-rows" not in entry:
        return None
    count = read_int(entry, f"{name}-rows")
    means, squares = (floats_of(entry, f"{name}-{what}") for what in ("means", "squares"))
    if not 0 < count < _MOST_ROWS or len(means) != len(squares) or min(squares, default=0) < 0:
        raise ValueError(f"moments of {name} must be of rows, each with a sum of squares >= 0")
    # Rows are float32: with larger numbers, what is fitted on all sites' rows would overflow.
    if max(map(abs, means), default=0) > LARGEST or max(squares, default=0) > count * LARGEST**2:
        raise ValueError(f"moments of {name} must be of rows of float32")
    return Moments(count, means, squares)


_NOTHING: Final = Told()


class NodeEntry(NamedTuple):
    """One node's answer to the roster query.

    Attributes:
        fingerprint: Digest of the source that it runs.
        source: Folder of this source.
        clients: Number of training rows of each client that it hosts.
        kind: Kind of its data.
        names: Names of the clients that have one.
        left_out: Its clients that take no part, since they have too few rows, and why.
        unscored: Its clients that train, but are not scored, and why.
        told: Moments of its training rows.
    """

    fingerprint: str
    source: str
    clients: dict[int, int]
    kind: Kind
    names: Names = UNNAMED
    left_out: Mapping[int, str] = {}
    unscored: Mapping[int, str] = {}
    told: Told = Told()


class Roster(NamedTuple):
    """The clients of a federation.

    Attributes:
        nodes: For each client 0..n-1, the node that hosts it; None if none has joined yet.
        examples: For each client, its number of training rows; 0 if it has not joined yet.
        kind: Kind of their data.
        names: Names of the clients that have one.
        unscored: Clients that train, but have too few rows to be scored, and why.
    """

    nodes: Sequence[int | None]
    examples: Sequence[int]
    kind: Kind = Kind()
    names: Names = UNNAMED
    unscored: Mapping[int, str] = {}

    def to_row(self) -> dict[str, Any]:
        """Returns the clients' entries in the first row of a run's record."""
        names = {str(client): name for client, name in self.names.items()}
        return {**self.kind.to_row(), **({"names": names} if names else {})}

    def by_node(self, clients: Sequence[int]) -> Mapping[int, list[int]]:
        """Groups the given clients that have joined by node, both in ascending order."""
        groups: dict[int, list[int]] = {}
        for client in sorted(clients):
            node = self.nodes[client]
            if node is not None:
                groups.setdefault(node, []).append(client)
        return dict(sorted(groups.items()))

    def sites(self) -> "Sites":
        """Returns the clients that have joined, as sites with tables."""
        nodes = {c: node for c, node in enumerate(self.nodes) if node is not None}
        rows = {client: self.examples[client] for client in nodes}
        return Sites(nodes, rows, list(self.kind.columns), self.names)


class Sites(NamedTuple):
    """The sites that take part in an exchange of estimates.

    Attributes:
        nodes: The node that hosts each client.
        rows: Each client's number of training rows.
        columns: Names of their tables' columns.
        names: Names of the sites that have one.
    """

    nodes: Mapping[int, int]
    rows: Mapping[int, int]
    columns: list[str]
    names: Names = UNNAMED

    def by_node(self) -> Mapping[int, list[int]]:
        """Returns the clients grouped by their nodes, both in ascending order."""
        groups: dict[int, list[int]] = {}
        for client, node in sorted(self.nodes.items()):
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
) -> RecordDict:
    """Returns this process's answer to the roster query; see ``NodeEntry``."""
    named = [client for client in (*clients, *left_out) if client in names]
    entry = ConfigRecord(
        {
            "fingerprint": fingerprint(),
            "source": str(source_root()),
            "clients": list(clients),
            "examples": list(clients.values()),
            "inputs": kind.inputs,
            "outputs": kind.outputs,
            "columns": list(kind.columns),
            "classes": list(kind.classes),
            "features": list(kind.features),
            "named": named,
            "names": [names[client] for client in named],
            "left-out": list(left_out),
            "left-out-reasons": list(left_out.values()),
            "unscored": list(unscored),
            "unscored-reasons": list(unscored.values()),
            **told.to_config(),
        }
    )
    return RecordDict({ROSTER: entry})


def read_entry(content: RecordDict) -> NodeEntry:
    """Reads an answer.

    Raises:
        KeyError: If an entry is missing.
        TypeError, ValueError: If it is something else.
    """
    entry = content.config_records[ROSTER]
    clients, examples = read_list(entry, "clients", int), read_list(entry, "examples", int)
    if not all(0 < rows < _MOST_ROWS for rows in examples):
        raise ValueError(f"rows must be in 1..{_MOST_ROWS - 1}")
    kind, told = _kind(entry), Told.from_config(entry)
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
    return NodeEntry(
        fingerprint=str(entry["fingerprint"]),
        source=str(entry["source"]),
        clients=hosted,
        kind=kind,
        names=names,
        left_out=left_out,
        unscored=unscored,
        told=told,
    )


def _kind(entry: ConfigRecord) -> Kind:
    inputs, outputs = str(entry["inputs"]), read_int(entry, "outputs")
    if inputs:
        check(inputs)
    if not 0 <= outputs < _MOST_ROWS:
        raise ValueError(f"outputs must be in 0..{_MOST_ROWS - 1}, got {brief(outputs)}")
    names = ("columns", "classes", "features")
    columns, classes, features = (tuple(read_list(entry, key, str)) for key in names)
    return Kind(inputs, outputs, columns, classes, features)


def _each(clients: list[int], values: list[_T]) -> dict[int, _T]:
    """Returns each client's value; clients must be different numbers, each with a value."""
    found = dict(zip(clients, values, strict=False))
    if not len(found) == len(clients) == len(values) or not all(
        0 <= client < _MOST_CLIENTS for client in clients
    ):
        numbers = f"different numbers in 0..{_MOST_CLIENTS - 1}, each with a value"
        raise ValueError(f"clients must be {numbers}, got {brief(clients)} with {brief(values)}")
    return found


def _reasons(entry: ConfigRecord, key: str) -> dict[int, str]:
    clients, reasons = read_list(entry, key, int), read_list(entry, f"{key}-reasons", str)
    return {client: one_line(reason) for client, reason in _each(clients, reasons).items()}
