"""A schema fitted to a table: safe kinds are inferred, others asked about."""

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.data.schema.cells import NOTHING, meant, texts_of
from engram.data.schema.columns import Column, Schema
from engram.data.schema.kinds import asked, codes, constant, is_measured, kind_of, mixed, thousands
from engram.data.schema.targets import asked_of_target, tells
from engram.data.schema.typed import Cells, is_plain
from engram.data.schema.written import Question, line, read_schema
from engram.settings.errors import DataError

INDEXES: Final = frozenset({"", "Unnamed: 0", "__index_level_0__"})
"""Names of columns that programs write for the numbers of rows: they are never inputs."""

_OF_VALUES: Final = ("category", "ordered")


class Fitted(NamedTuple):
    """A schema that was fitted.

    Attributes:
        schema: The schema, with a proposal where something was asked.
        questions: The columns that are asked about.
        notes: What is said, and not asked.
        constants: The columns that are left out, since all rows have one value.
    """

    schema: Schema
    questions: list[Question]
    notes: list[str]
    constants: list[Question]


def fit(
    frame: Any,
    written: Schema,
    *,
    target: str = "",
    others: Collection[str] = (),
    is_written: bool = False,
    may_have_codes: bool = False,
    of_all: bool = False,
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
        may_have_codes: Whether its kind is the task's alone, so that codes are asked about.
        of_all: Whether rows are all sites', so that columns of one value are left out.
        clients: Each row's client, (n,), where there are several.

    Raises:
        DataError: A cell that counts as missing in any column stands in none, and names one.
    """
    columns, questions, notes = list[Column](), list[Question](), _codes(frame, written)
    constants = list[Question]()
    aim = Cells.of(written.column(target), frame[target]) if target else None
    for name, given in frame.items():
        column = written.by_name.get(name, Column(name))
        known = getattr(given.dtype, "categories", None)
        if known is not None and not column.kind:
            column = replace(column, kind="category", values=tuple(map(str, known)))
        if name in INDEXES and not column.kind:
            column = replace(column, kind="ignored")
        by_task = name == target and may_have_codes
        if column.kind and not by_task and (column.values or column.kind not in _OF_VALUES):
            columns.append(column)
            continue
        is_open = not (column.kind or name == target or name in others or column.role != "input")
        if not column.kind and is_plain(written.column(name)) and is_measured(given):
            numbers = given.to_numpy(np.float64, na_value=np.nan)
            notes += _telling(name, numbers, aim) if is_open else []
            columns.append(replace(column, kind="number"))
            continue
        cells, question = Cells.of(written.column(name), given), None
        marked = written.missing != "median"
        if of_all and is_open and not column.values and (one := constant(cells, marked=marked)):
            constants.append(one)
            columns.append(replace(column, kind="ignored"))
            continue
        if by_task:
            question = codes(cells) or thousands(cells)
        elif name == target:
            question = None if column.kind or column.values else mixed(cells)
            if not (column.kind or is_written or question):
                question = asked_of_target(cells, clients)
        elif is_open:
            question = asked(cells, aim)
            if question is None and cells.numbers is not None:
                notes += _telling(name, np.append(cells.numbers, np.nan)[cells.rows], aim)
        notes += _notes(cells)
        if question is not None:
            questions.append(question)
            (proposal,) = read_schema(question.choices[0]).columns
            column = replace(proposal, role=column.role, kind=proposal.kind or column.kind)
            cells = Cells.of(replace(written, columns=(column,)).column(name), given)
        columns.append(_completed(column, cells))
    return Fitted(replace(written, columns=tuple(columns)), questions, notes, constants)


def _completed(column: Column, cells: Cells) -> Column:
    kind = column.kind or ("number" if column.unit else kind_of(cells))  # a unit: it is measured
    values = column.values
    if not values and kind in _OF_VALUES:
        keys = cells.texts if cells.numbers is None else cells.numbers
        values = tuple(str(cells.texts[k]) for k in np.argsort(keys, kind="stable"))
    return replace(column, kind=kind, values=values)


def _notes(cells: Cells) -> list[str]:
    name, unless = cells.column.name, "and count as missing unless it is of its values"
    return [f"{name}: {n} cells say {text!r}, {unless}" for text, n in cells.nothing.items()]


def _telling(name: str, numbers: npt.NDArray[np.float64], target: Cells | None) -> list[str]:
    if target is None or not tells(numbers, target):
        return []
    mend = f"if it is known only afterwards, write {line(name, {'kind': 'ignored'})}"
    return [f"{name} alone tells {target.column.name}: {mend}"]


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
