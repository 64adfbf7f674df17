"""Descriptions of sites' tables: what a node tells of its columns before anything trains."""

import json
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import ConfigDict, Field, TypeAdapter, with_config

from federation.errors import brief
from federation.files import parse_json

MOST_VALUES: Final = 100
"""Values of a column of text that are told."""

LONGEST: Final = 100
"""Characters of a value that is told."""

_MOST: Final = 2**22  # characters of a description
_COLUMNS: Final = 20_000

_Name = Annotated[str, Field(max_length=1000)]
_Value = Annotated[str, Field(max_length=LONGEST)]
_Count = Annotated[int, Field(ge=0, lt=2**31)]
_Number = Annotated[float, Field(allow_inf_nan=False)]


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class DescribedColumn:
    """A column of a site's table.

    Attributes:
        name: Its name.
        kind: ``number``, ``text``, or ``other`` of something else, such as dates.
        missing: Number of rows without a value.
        distinct: Number of different values.
        values: Those values, sorted; empty where they are not told: of numbers that are not few
            and whole, and of text where there are many, or most are of a single row.
        odd: Description of its first cells that are no numbers, where most are; or of those of
            another type.
        odd_values: Those cells of text.
        mean: Mean of the numbers, rounded; None where that is not told.
        low: Number below which a tenth of the rows lies, rounded; None where that is not told.
        median: Median, likewise.
        high: Number above which a tenth of the rows lies, likewise.
    """

    name: _Name
    kind: Literal["number", "text", "other"]
    missing: _Count = 0
    distinct: _Count = 0
    values: Annotated[tuple[_Value, ...], Field(max_length=MOST_VALUES)] = ()
    odd: _Name = ""
    odd_values: Annotated[tuple[_Value, ...], Field(max_length=MOST_VALUES)] = ()
    mean: _Number | None = None
    low: _Number | None = None
    median: _Number | None = None
    high: _Number | None = None


class DescribedTable(NamedTuple):
    """A site's table.

    Attributes:
        rows: Number of its rows.
        columns: Its columns, by name.
    """

    rows: int
    columns: dict[str, DescribedColumn]

    @classmethod
    def of(cls, rows: int, columns: list[DescribedColumn]) -> Self:
        """Returns the table with these columns."""
        return cls(rows, {column.name: column for column in columns})

    def to_json(self) -> dict[str, Any]:
        """Returns what ``from_json`` reads."""
        columns = _adapter().dump_python([*self.columns.values()], exclude_defaults=True)
        return {"rows": self.rows, "columns": columns}

    def told(self) -> str:
        """Returns it as a text, for ``from_json``."""
        return json.dumps(self.to_json())

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
        table = cls.of(rows, columns)
        counts = [n for c in columns for n in (c.missing, c.distinct)]
        if type(rows) is not int or not 0 <= max([*counts, 0]) <= rows < 2**31:
            raise ValueError(f"rows must be a number of rows, got {brief(rows)}")
        if len(table.columns) < len(columns):
            raise ValueError("columns must have different names")
        return table


@cache
def _adapter() -> Any:
    return TypeAdapter(Annotated[list[DescribedColumn], Field(max_length=_COLUMNS)])
