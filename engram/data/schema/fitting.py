"""A schema fitted to a table: safe kinds are inferred, others asked about."""

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.data.schema.cells import NOTHING, meant, texts_of
from engram.data.schema.columns import Column, Schema
from engram.data.schema.kinds import asked, classes, is_measured, kind_of, mixed, shifted
from engram.data.schema.typed import Cells, is_plain
from engram.data.schema.written import Question, line, read_schema
from engram.settings.errors import DataError

INDEXES: Final = frozenset({"", "Unnamed: 0", "__index_level_0__"})
"""Names of columns that programs write for the numbers of rows: they are never inputs."""


class Fitted(NamedTuple):
    """A schema that was fitted.

    Attributes:
        schema: The schema, with a proposal where something was asked.
        questions: The columns that are asked about.
        notes: What is said, and not asked.
    """

    schema: Schema
    questions: list[Question]
    notes: list[str]


def fit(
    frame: Any,
    written: Schema,
    *,
    target: str = "",
    others: Collection[str] = (),
    is_written: bool = False,
    clients: npt.NDArray[Any] | None = None,
) -> Fitted:
    """Fits a schema to a table of named columns.

    Args:
        frame: The table, as pandas has it: cells are texts as they are written, or of a type that
            the source gives.
        written: What is known of its columns.
        target: The column to predict; empty for none.
        others: Columns that are neither inputs nor the target, such as the clients'.
        is_written: Whether it is known what the target is, as by the setting ``task``.
        clients: Each row's client, (n,), where there are several.

    Raises:
        DataError: A cell that counts as missing in any column stands in none, and names one.
    """
    columns, questions, notes = list[Column](), list[Question](), _codes(frame, written)
    aim = Cells.of(written.column(target), frame[target]) if target else None
    for name, given in frame.items():
        column = written.by_name.get(name, Column(name))
        known = getattr(given.dtype, "categories", None)
        if known is not None and not column.kind:
            column = replace(column, kind="category", values=tuple(map(str, known)))
        if name in INDEXES and not column.kind:
            column = replace(column, kind="ignored")
        if column.kind and (column.values or column.kind not in ("category", "ordered")):
            columns.append(column)
            continue
        if not column.kind and is_plain(written.column(name)) and is_measured(given):
            columns.append(replace(column, kind="number"))
            continue
        cells, question = Cells.of(written.column(name), given), None
        if name == target:
            question = None if column.kind or column.values else mixed(cells)
            if not (column.kind or is_written or question):
                question = shifted(cells, clients) or classes(cells)
        elif not column.kind and name not in others:
            question = asked(cells, aim)
        notes += _notes(cells)
        if question is not None:
            questions.append(question)
            (proposal,) = read_schema(question.choices[0]).columns
            column = replace(proposal, role=column.role)
            cells = Cells.of(replace(written, columns=(column,)).column(name), given)
        columns.append(_completed(column, cells))
    return Fitted(replace(written, columns=tuple(columns)), questions, notes)


def _completed(column: Column, cells: Cells) -> Column:
    kind = column.kind or ("number" if column.unit else kind_of(cells))  # a unit: it is measured
    values = column.values
    if not values and kind in ("category", "ordered"):
        keys = cells.texts if cells.numbers is None else cells.numbers
        values = tuple(str(cells.texts[k]) for k in np.argsort(keys, kind="stable"))
    return replace(column, kind=kind, values=values)


def _notes(cells: Cells) -> list[str]:
    name, unless = cells.column.name, "and count as missing unless it is of its values"
    notes = [f"{name}: {n} cells say {text!r}, {unless}" for text, n in cells.nothing.items()]
    if len(cells.texts) < 2:
        held = "".join(f" but {text!r}" for text in cells.shown())
        ignored = line(name, {"kind": "ignored"})
        notes.append(f"{name} has no value{held}, which tells nothing: {ignored} leaves it out")
    return notes


def _codes(frame: Any, written: Schema) -> list[str]:
    """Notes on the columns where codes for a missing value stand.

    Raises:
        DataError: One stands nowhere, and names a column.
    """
    notes = []
    for code in written.file.missing:
        counts = {name: _count(written.column(name), given, code) for name, given in frame.items()}
        name = re.split("[=:]", code)[0].strip()
        if not any(counts.values()) and name != code and name in frame:
            value = re.split("[=:;]", code)[1].strip()
            raise DataError(
                f"file.missing must be cells of any column, got {code!r}: write "
                f'columns.{name} = {{missing = ["{value}"]}} into the schema for one column'
            )
        each = ", ".join(f"{count} of {name}" for name, count in counts.items() if count)
        notes.append(f"{code!r} counts as missing in {each or 'no cell'}")
    return notes + [
        f"{code!r} counts as missing in no cell of {column.name}"
        for column in written.columns
        for code in (column.missing if column.name in frame else ())
        if not _count(column, frame[column.name], code)
    ]


def _count(column: Column, given: Any, code: str) -> int:
    """Number of a column's cells that a code says are missing."""
    rows, different = given.factorize()
    alone = replace(column, missing=(code,), values=(*NOTHING,))
    gone = [k for k, text in enumerate(meant(alone, texts_of(different))) if text is None]
    return int(np.isin(rows, gone).sum())
