"""A schema fitted to a table: what is safe is inferred, and the rest is asked about."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from federation.data.schema.cells import Cells
from federation.data.schema.rules import asked, classes, kind_of, mixed
from federation.data.schema.written import Question, read_schema
from federation.schema import Column, Schema

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
) -> Fitted:
    """Fits a schema to a table of named columns.

    Args:
        frame: The table, as pandas has it: cells are texts as they are written, or of a type that
            the source gives.
        written: What is known of its columns.
        target: The column to predict; empty for none.
        others: Columns that are neither inputs nor the target, such as the clients'.
        is_written: Whether it is known what the target is, as by the setting ``task``.
    """
    columns, questions, notes = list[Column](), list[Question](), list[str]()
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
        cells, question = Cells.of(written.column(name), given), None
        if name == target:
            question = None if column.values else mixed(cells)
            question = question or (None if is_written else classes(cells))
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
    kind = column.kind or kind_of(cells)
    values = column.values
    if not values and kind in ("category", "ordered"):
        keys = cells.texts if cells.numbers is None else cells.numbers
        values = tuple(str(cells.texts[k]) for k in np.argsort(keys, kind="stable"))
    return replace(column, kind=kind, values=values)


def _notes(cells: Cells) -> list[str]:
    notes = []
    if cells.nothing:
        notes.append(
            f"{cells.name}: {cells.nothing} cells say NA or the like, and count as missing"
        )
    return notes
