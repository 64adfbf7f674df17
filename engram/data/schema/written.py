"""Schemas as TOML, which a person reads and edits.

A table for each column, and one of the file::

    [file]
    separator = ";"

    [columns.age]
    kind = "number"
    unit = "years"
    missing = ["-99"]

    [columns.sex]
    kind = "category"
    values = {"1" = "M", "2" = "F"}
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from engram.data.schema.columns import Column, File, Schema, adapter
from engram.settings.errors import Refused, few_names, one_line
from engram.settings.fields import in_words, nearest
from engram.settings.files import parse_toml, read_file

_LARGEST: Final = 2**24  # bytes
_PARTS: Final = ("columns", "file")
_OF_TEXTS: Final = ("tokenizer", "length", "vocabulary", "least")


class Question(NamedTuple):
    """A column of which nothing is assumed.

    Attributes:
        column: Its name.
        cells: Three of its cells, where ``looks`` names none. Nodes do not send them.
        looks: What they look like.
        choices: Lines of a schema that answer it; the first is the proposal.
        rule: Name of the rule that asks.
    """

    column: str
    cells: tuple[str, ...]
    looks: str
    choices: tuple[str, ...]
    rule: str = ""

    def __str__(self) -> str:
        """Returns the line of a refusal."""
        cells = f" ({', '.join(map(repr, self.cells))})" if self.cells else ""
        return f"column {self.column}{cells} {self.looks}: write {', or '.join(self.choices)}"


def read_schema(given: str) -> Schema:
    """Reads a schema: the name of a file of TOML, or lines of it.

    Raises:
        Refused: The file cannot be read, or an entry is unknown or impossible; it names all.
    """
    if "=" in given:
        return of_toml(given.encode(), "schema")
    try:
        return of_toml(read_file(Path(given), most=_LARGEST), given)
    except OSError as error:
        raise Refused(f"schema {given} cannot be read: {error.strerror}") from error


def of_toml(data: bytes, where: str) -> Schema:
    """Reads TOML; ``where`` is its name in messages.

    Raises:
        Refused: As for ``read_schema``.
    """
    try:
        found = parse_toml(data)
    except ValueError as error:
        raise Refused(f"{where} is not TOML: {one_line(str(error))}") from error
    faults = [
        f"{where}: {one_line(key)} must be {' or '.join(_PARTS)}"
        for key in found.keys() - {*_PARTS}
    ]
    tables = found.get("columns", {})
    if not isinstance(tables, Mapping) or not all(isinstance(t, Mapping) for t in tables.values()):
        raise Refused(f"{where}: columns must be a table for each column")
    columns = []
    for name, table in tables.items():
        entries = dict(table)
        if isinstance(values := entries.get("values"), Mapping):
            entries |= {"codes": dict(values), "values": sorted({*map(str, values.values())})}
        values = entries.get("values", ())
        if isinstance(values, list) and len({*map(str, values)}) < len(values):
            faults.append(f"{where}: columns.{name} must have values that differ")
        of_text = [one for one in _OF_TEXTS if one in entries]
        if of_text and entries.get("kind") != "text":
            faults.append(f'{where}: columns.{name} must have kind = "text" for {of_text[0]}')
        columns += _read(Column, {"name": name, **entries}, f"{where}: columns.{name}", faults)
    files = _read(File, found.get("file", {}), f"{where}: file", faults)
    if faults:
        raise Refused(*faults)
    return Schema(tuple(columns), file=files[0])


def _read(kind: type, entries: Any, where: str, faults: list[str]) -> list[Any]:
    """Reads the object that entries describe, or adds to ``faults``."""
    known = [field.name for field in fields(kind)]
    for key in entries.keys() - {*known}:
        hint = nearest(key, known) or f": it may have {few_names(known[1:])}"
        faults.append(f"{where} has an unknown entry {one_line(key)}{hint}")
    try:
        return [adapter(kind).validate_python({k: entries[k] for k in known if k in entries})]
    except ValidationError as error:
        for detail in error.errors():
            path = ".".join(map(str, detail["loc"]))
            faults.append(f"{where}{in_words(f'.{path}' if path else '', dict(detail))}")
        return []


def to_toml(schema: Schema, questions: Sequence[Question] = ()) -> str:
    """Returns a schema as TOML, with a comment above each column that was asked about."""
    asked = {question.column: question for question in questions}
    lines = _lines("file", schema.file, ())
    for column in schema.columns:
        notes = []
        if (question := asked.get(column.name)) is not None:
            shown = ", ".join(json.dumps(cell, ensure_ascii=False) for cell in question.cells)
            cells, others = shown and f" ({shown})", "; ".join(question.choices[1:])
            notes = [f"# It {question.looks}{cells}.{others and f' Or: {others}'}"]
        head = f"columns.{key(column.name)}"
        lines += _lines(head, column, notes)
    return "\n".join(lines) + "\n"


def _lines(head: str, found: Any, notes: Sequence[str]) -> list[str]:
    each = ((field, getattr(found, field.name)) for field in fields(found) if field.name != "name")
    entries = {f.name: value for f, value in each if f.name == "kind" or value != _default(f)}
    if codes := entries.pop("codes", None):
        entries["values"] = codes
    body = [f"{key} = {_value(value)}" for key, value in entries.items()]
    return ["", *notes, f"[{head}]", *body] if body else []


def _default(field: Any) -> Any:
    return field.default if field.default is not MISSING else {}


def line(column: str, entries: Mapping[str, Any]) -> str:
    """Returns the line of a schema that has these entries of a column."""
    return f"columns.{key(column)} = {_value(entries)}"


def key(name: str) -> str:
    """Returns a column's name as a key of TOML."""
    plain = name and all(c.isascii() and (c.isalnum() or c in "_-") for c in name)
    return name if plain else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    text = json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")  # as TOML has it, beside what JSON escapes
