"""Descriptions of sites' tables, before training."""

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, with_config

from engram.data.schema.columns import Column, Schema
from engram.data.schema.written import of_toml
from engram.guards.secure.masks import SEED, agreed, public_of
from engram.scoring.event_tables import MOST_CELLS, EventTable
from engram.settings.errors import Refused, brief
from engram.settings.files import parse_json, read_file

MOST_VALUES: Final = 100
"""Values of a column that are told."""

LONGEST: Final = 100
"""Characters of a value that is told."""

MOST_EDGES: Final = 100
"""Edges between counts of a column that are told."""

SCHEMA: Final = "schema.toml"
"""A site's own schema, in a client's folder."""

_PURPOSE: Final = b"engram table"
_MOST: Final = 2**24  # characters of a description
_COLUMNS: Final = 20_000
_NAME: Final = 1000  # characters


def _checked(column: Column) -> Column:
    texts = (*column.values, column.unit, column.since)
    if len(column.name) > _NAME or len(column.values) > MOST_VALUES:
        raise ValueError("a column must have a short name, and few values")
    if any(len(text) > LONGEST for text in texts):
        raise ValueError(f"values must have at most {LONGEST} characters")
    return column


_Count = Annotated[int, Field(ge=0, lt=2**31)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Cell = tuple[_Number, _Count, _Count, _Count]
_Line = Annotated[str, Field(max_length=10 * LONGEST)]


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class DescribedColumn:
    """A column of a site's table, with figures that enough of its rows share.

    Attributes:
        column: The column: its kind, or the proposal where that is asked about, empty where too few
            rows have a value; its unit; and values that enough rows have, sorted, of numbers and
            text of which there are few, or those that the site has written down.
        asked: Name of the rule that asks about it; empty for none.
        choices: Lines of a schema that answer, as far as they quote no cell of too few rows.
        blanks: Whether cells have blanks around them, which are left out.
        missing: Number of rows without a value; None where that is not told.
        mean: Mean of the numbers, rounded; None where that is not told.
        deviation: Their standard deviation, likewise.
        low: Number below which a tenth of the rows lies, likewise.
        median: Median, likewise.
        high: Number above which a tenth of the rows lies, likewise.
        edges: Numbers, ascending, between which rows are counted.
        counts: Rows below the first edge, from each edge to the next, and from the last one.
        events: Cells of an ``EventTable``, of the column with the role time.
    """

    column: Annotated[Column, AfterValidator(_checked)]
    asked: Annotated[str, Field(max_length=LONGEST)] = ""
    choices: Annotated[tuple[_Line, ...], Field(max_length=MOST_VALUES)] = ()
    blanks: bool = False
    missing: _Count | None = None
    mean: _Number | None = None
    deviation: _Number | None = None
    low: _Number | None = None
    median: _Number | None = None
    high: _Number | None = None
    edges: Annotated[tuple[_Number, ...], Field(max_length=MOST_EDGES)] = ()
    counts: Annotated[tuple[_Count, ...], Field(max_length=MOST_EDGES + 1)] = ()
    events: Annotated[tuple[_Cell, ...], Field(max_length=MOST_CELLS + 1)] = ()

    @property
    def event_table(self) -> EventTable | None:
        """Its events, if it has some; ``ValueError`` where they cannot be any."""
        return EventTable.of(self.events) if self.events else None


class DescribedTable(NamedTuple):
    """A site's table.

    Attributes:
        rows: Number of its rows; 0 where no figure is told.
        columns: Its columns, by name.
    """

    rows: int
    columns: dict[str, DescribedColumn]

    def told(self) -> str:
        """Returns it as a text, for ``from_json``."""
        columns = _adapter().dump_python([*self.columns.values()], exclude_defaults=True)
        return json.dumps({"rows": self.rows, "columns": columns})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads a text that may be anything.

        Raises:
            ValueError: It is no description, or a larger one than any table has.
        """
        if len(text) > _MOST:
            raise ValueError(f"a table's description must be at most {_MOST} characters long")
        try:
            found = parse_json(text.encode())
            rows, columns = found["rows"], _adapter().validate_python(found["columns"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"a table must be rows and columns, got {brief(text)}") from error
        table = cls(rows, {each.column.name: each for each in columns})
        events = [cells.entered.sum() for c in columns if (cells := c.event_table)]
        counts = [0, *events, *(max(c.missing or 0, sum(c.counts)) for c in columns)]
        if type(rows) is not int or not 0 <= max(counts) <= rows < 2**31:
            raise ValueError(f"rows must be a number of rows, got {brief(rows)}")
        if len(table.columns) < len(columns):
            raise ValueError("columns must have different names")
        if any(c.counts and len(c.counts) != len(c.edges) + 1 for c in columns):
            raise ValueError("columns must have a count between any two edges")
        return table

    def sealed(self, reader: bytes) -> bytes:
        """Encrypts it for the owner of a public key: disks on the way keep messages."""
        private = os.urandom(SEED)  # of a key for this alone, so that any nonce will do
        cipher = AESGCM(agreed(private, reader, _PURPOSE))
        return public_of(private) + cipher.encrypt(bytes(12), self.told().encode(), None)

    @classmethod
    def opened(cls, letter: bytes, private: bytes) -> Self:
        """Decrypts ``sealed`` text, which is untrusted.

        Raises:
            ValueError: It is sealed for another key, or as ``from_json``.
        """
        try:
            cipher = AESGCM(agreed(private, letter[:SEED], _PURPOSE))
            return cls.from_json(cipher.decrypt(bytes(12), letter[SEED:], None).decode())
        except InvalidTag as error:
            raise ValueError("it is damaged, or sealed for another reader") from error


def site_schema(folder: Path | None) -> Schema:
    """Reads the schema that a person has written into a client's folder; empty without a file.

    Raises:
        Refused: The file cannot be read, or an entry is unknown or impossible.
    """
    if folder is None or not (path := folder / SCHEMA).exists():
        return Schema()
    try:
        return of_toml(read_file(path), str(path))
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error


@cache
def _adapter() -> Any:
    return TypeAdapter(Annotated[list[DescribedColumn], Field(max_length=_COLUMNS)])
