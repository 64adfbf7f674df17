"""Columns of a table: what each holds, and what it is for."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal, NamedTuple

Kind = Literal[
    "", "number", "whole", "category", "ordered", "truth", "text", "date", "identifier", "ignored"
]
Role = Literal["input", "target", "client", "part", "weight", "event"]

INPUTS: Final = ("number", "whole", "category", "ordered", "truth", "text", "date")
"""Kinds of which a network or a method of tables can learn."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its name.
        kind: What its cells are: a ``number``, a ``whole`` number, one of the values of a
            ``category``, of an ``ordered`` one, a ``truth`` value (the second of two values is
            true), ``text``, a ``date``, an ``identifier``, or something that is ``ignored``; empty
            where that is inferred.
        role: What it is for.
        values: Those that a cell may have, in their order; empty for any.
        codes: By a value as this table writes it, the value that is meant.
        missing: Cells that stand for a missing value, besides empty ones.
        unit: The unit of its numbers; cells may end or begin with it.
        decimal: The decimal mark of its numbers; empty for the file's.
        thousands: The mark between thousands; empty for the file's.
        factor: What its numbers are multiplied by to be in ``unit``.
        format: How its dates are written, as ``strptime`` has it; empty for ISO 8601.
        since: The day from which its dates count days.
        low: The least number that is usual.
        high: The greatest, likewise.
    """

    name: str
    kind: Kind = ""
    role: Role = "input"
    values: tuple[str, ...] = ()
    codes: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    unit: str = ""
    decimal: Literal["", ".", ","] = ""
    thousands: Literal["", ",", ".", " ", "'"] = ""
    factor: float = 1.0
    format: str = ""
    since: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class File:
    """How a text file writes a table.

    Attributes:
        separator: The mark between cells; empty where it is found.
        encoding: The encoding of its text.
        skip: How many lines are above the names, or the rows.
        decimal: The decimal mark of its numbers.
        thousands: The mark between thousands; empty for none.
        names: Names of the columns, of a file without a line of them.
    """

    separator: str = ""
    encoding: str = "utf-8"
    skip: int = 0
    decimal: Literal[".", ","] = "."
    thousands: Literal["", ",", ".", " ", "'"] = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schema:
    """A description of a table.

    Attributes:
        columns: Its columns, in their order.
        file: How a text file writes it.
    """

    columns: tuple[Column, ...] = ()
    file: File = File()

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """The columns by their names."""
        return {column.name: column for column in self.columns}

    def column(self, name: str) -> Column:
        """Returns the column of a name, with the file's marks where it has none of its own."""
        column, file = self.by_name.get(name, Column(name)), self.file
        decimal, thousands = column.decimal or file.decimal, column.thousands or file.thousands
        return replace(column, decimal=decimal, thousands=thousands)


class Question(NamedTuple):
    """A column of which nothing is assumed.

    Attributes:
        column: Its name.
        cells: Three of its cells, as they are written. Nodes do not send them.
        looks: What they look like.
        choices: Lines of a schema that answer it; the first is the proposal.
    """

    column: str
    cells: tuple[str, ...]
    looks: str
    choices: tuple[str, ...]

    def __str__(self) -> str:
        """Returns the line of a refusal."""
        cells = ", ".join(map(repr, self.cells))
        return f"column {self.column} ({cells}) {self.looks}: write {', or '.join(self.choices)}"
