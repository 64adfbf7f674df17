"""Descriptions of sites' tables: what a node tells of its columns before anything trains."""

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from federation.errors import Refused, brief, one_line
from federation.files import parse_json
from federation.secure.masks import SEED, agreed, public_of
from federation.settings.fields import in_words
from federation.settings.files import read_settings

MOST_VALUES: Final = 100
"""Values of a column of text that are told."""

LONGEST: Final = 100
"""Characters of a value that is told."""

SCHEMA: Final = "schema.toml"
"""A site's own schema in a client's folder: a table of TOML for each column."""

_PURPOSE: Final = b"engram table"
_WRITTEN: Final = ("kind", "values", "unit", "missing-values")
_MOST: Final = 2**22  # characters of a description
_COLUMNS: Final = 20_000

_Name = Annotated[str, Field(max_length=1000)]
_Value = Annotated[str, Field(max_length=LONGEST)]
_Values = Annotated[tuple[_Value, ...], Field(max_length=MOST_VALUES)]
_Count = Annotated[int, Field(ge=0, lt=2**31)]
_Number = Annotated[float, Field(allow_inf_nan=False)]


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class DescribedColumn:
    """A column of a site's table.

    Attributes:
        name: Its name.
        kind: ``number``, ``text``, or ``other`` of something else, such as dates.
        values: Values that enough rows have, sorted; none of numbers that are not few and whole,
            and of text where there are many. Or those that the site has written down.
        unit: The unit of its numbers, as the site has written it down.
        missing_values: Texts that stand for a missing value, likewise.
        missing: Number of rows without a value; None where that is not told.
        mean: Mean of the numbers, rounded; None where that is not told.
        low: Number below which a tenth of the rows lies, rounded; None where that is not told.
        median: Median, likewise.
        high: Number above which a tenth of the rows lies, likewise.
    """

    name: _Name
    kind: Literal["number", "text", "other"]
    values: _Values = ()
    unit: _Value = ""
    missing_values: _Values = ()
    missing: _Count | None = None
    mean: _Number | None = None
    low: _Number | None = None
    median: _Number | None = None
    high: _Number | None = None


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
        table = cls(rows, {column.name: column for column in columns})
        counts = [column.missing or 0 for column in columns]
        if type(rows) is not int or not 0 <= max([*counts, 0]) <= rows < 2**31:
            raise ValueError(f"rows must be a number of rows, got {brief(rows)}")
        if len(table.columns) < len(columns):
            raise ValueError("columns must have different names")
        return table

    def sealed(self, reader: bytes) -> bytes:
        """Seals it for the owner of a public key, since disks on the way keep what passes."""
        private = os.urandom(SEED)  # of a key for this alone, so that any nonce will do
        cipher = AESGCM(agreed(private, reader, _PURPOSE))
        return public_of(private) + cipher.encrypt(bytes(12), self.told().encode(), None)

    @classmethod
    def opened(cls, letter: bytes, private: bytes) -> Self:
        """Reads what ``sealed`` returned, or anything else.

        Raises:
            ValueError: It is sealed for another key, or as ``from_json``.
        """
        try:
            cipher = AESGCM(agreed(private, letter[:SEED], _PURPOSE))
            return cls.from_json(cipher.decrypt(bytes(12), letter[SEED:], None).decode())
        except InvalidTag as error:
            raise ValueError("it is damaged, or sealed for another reader") from error


def read_schema(folder: Path | None) -> dict[str, DescribedColumn]:
    """Reads the columns that a person has written into a client's folder, if there is a file.

    Raises:
        Refused: The file cannot be read, or an entry is unknown or impossible.
    """
    if folder is None or not (path := folder / SCHEMA).exists():
        return {}
    found: dict[str, dict[str, Any]] = {}
    for key, value in read_settings(path).items():
        name, _, entry = key.rpartition(".")
        if entry not in _WRITTEN or not name:
            raise Refused(f"{path}: {one_line(key)} must be {', '.join(_WRITTEN)} of a column")
        found.setdefault(name, {"name": name, "kind": ""})[entry.replace("-", "_")] = value
    try:
        columns = _adapter().validate_python([*found.values()])
    except ValidationError as error:
        (number, *entries), detail = error.errors()[0]["loc"], dict(error.errors()[0])
        named = one_line(".".join(map(str, [list(found)[int(number)], *entries])))
        raise Refused(f"{path}: {in_words(named, detail)}") from error
    return {column.name: column for column in columns}


@cache
def _adapter() -> Any:
    return TypeAdapter(Annotated[list[DescribedColumn], Field(max_length=_COLUMNS)])
