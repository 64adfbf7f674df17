"""Columns of text: which values there are, and which number each has in the whole federation."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import isfinite, nan
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from engram.checks import Fault, clash, must
from engram.tasks import CLASSIFICATION
from federation.data.schema.cells import row_name
from federation.data.schema.written import read_schema
from federation.errors import DataError, brief, few_names
from federation.schema import INPUTS, Column, Schema
from federation.settings.data import DataSettings
from federation.settings.text import TextColumn

_INPUTS = {*INPUTS, "text", ""}
_MOST = 1000  # values of a column: each is a column of inputs


class Values(NamedTuple):
    """The values of columns of text.

    Attributes:
        declared: By name of a column, the values that it may have, in their order.
        needed: Whether every such column must be declared: its rows are one client's, and others
            may hold other values.
    """

    declared: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    needed: bool = False

    @classmethod
    def parse(cls, text: str, *, needed: bool) -> "Values":
        """Reads the setting ``categories``: ``color=red|blue; size=small|large``.

        Raises:
            DataError: If it is something else.
        """
        example = "columns with all their values, such as color=red|blue; size=small|large"
        found = _by_column("categories", text, example)
        declared = {
            name: tuple(map(str.strip, values.split("|"))) for name, values in found.items()
        }
        if any(not all(v) or len(set(v)) < len(v) for v in declared.values()):
            raise DataError(must("categories", text, example))
        return cls(declared, needed)

    def of(
        self, path: Path, name: str, column: npt.NDArray[Any], rows: Sequence[Any] = ()
    ) -> tuple[str, ...]:
        """Returns the values of a column, (n,) of text: the declared ones, or those it holds.

        Args:
            path: Where the column is, for messages.
            name: Its name.
            column: Its cells, without missing ones.
            rows: Labels of its rows, as pandas has them; empty if they are 0, 1, ...

        Raises:
            DataError: If it holds others, or they had to be declared, or are too many.
        """
        held = tuple(np.unique(column).tolist())
        if name not in self.declared:
            if self.needed:
                raise DataError(
                    f"{path}: {name} is text, whose values other nodes may hold others of: declare "
                    f"them for the run, as categories={name}=A|B|..."
                )
            if len(held) > _MOST:
                raise DataError(f"{path}: {name} must have at most {_MOST} values, got {len(held)}")
            return held
        known = self.declared[name]
        for value in set(held) - set(known):
            row = int(np.argmax(column == value))
            text = (
                f"{path}: {name} must be one of {few_names(known)} (categories), got "
                f"{brief(value)} in {row_name(rows[row] if len(rows) else row)}"
            )
            raise DataError(Fault((), text, (name,)))
        return known

    def numbered(self, path: Path, name: str, column: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Returns the number of each row's value, from 0.

        Raises:
            DataError: As ``of``.
        """
        number = {value: k for k, value in enumerate(self.of(path, name, column))}
        return np.array([number[value] for value in column.tolist()], dtype=np.int64)


class Columns(NamedTuple):
    """Columns of a file.

    Attributes:
        target: The target's name.
        task: The name of the column that says whose a row is; it may be missing.
        inputs: Names of the columns of inputs; all others if there are none.
        schema: What is written of its columns.
        values: Those of columns of text.
        by_name: Whether columns of inputs are in the order of their names, and not in the file's,
            unless ``inputs`` gives one: files of other sites may have another.
        strict: Whether a column of which a schema cannot be sure is refused.
        is_known: Whether it is said what the target is.
        drop: Columns that are no inputs.
        whose: Whether a column must say whose a row is, if ``task`` is not the default.
        text: The column of texts, if that is the input.
    """

    target: str = "y"
    task: str = "task"
    inputs: tuple[str, ...] = ()
    schema: Schema = Schema()
    values: Values = Values()
    by_name: bool = False
    strict: bool = True
    is_known: bool = True
    drop: tuple[str, ...] = ()
    whose: bool = True
    text: TextColumn | None = None

    @classmethod
    def of(cls, settings: DataSettings, *, alone: bool = False) -> Self:
        """Returns what settings say of a file's columns.

        Args:
            settings: The settings.
            alone: Whether the file's rows are one client's, and others may hold other values.

        Raises:
            DataError: As ``Values.parse``, or other settings do not go with optional columns, or a
                schema has another input beside a text.
        """
        text, inputs = settings.text, listed(settings.input_columns, ",")
        example = "columns that a table may lack, each with a value, such as dose=2.5; ward=north"
        defaults = _by_column("optional-columns", settings.optional_columns, example)
        if defaults and settings.missing == "refuse":
            wanted = "median or indicator where a table may lack columns"
            raise DataError(clash("missing", settings.missing, wanted, "optional-columns"))
        if strange := [name for name in defaults if name not in inputs]:
            wanted = f"with all columns of inputs, {few_names(strange)} among them"
            raise DataError(
                clash("input-columns", settings.input_columns, wanted, "optional-columns")
            )
        values = Values.parse(settings.categories, needed=alone)
        written = read_schema(settings.schema) if settings.schema else Schema()
        target = settings.target_column
        columns = dict(written.by_name)
        for name, declared in values.declared.items():
            known, is_target = columns.get(name, Column(name)), name == target
            # Numbers of classes may have names, too.
            kind = known.kind if is_target else "category"
            columns[name] = replace(known, kind=kind, values=declared)
        for name, value in defaults.items():
            columns[name] = replace(columns.get(name, Column(name)), default=value)
        if text:
            _check_alone(written, text.name, {target, settings.task_column})
            known = columns.get(text.name, Column(text.name))
            columns[text.name] = replace(known, kind="text", values=())
        missing = (*written.file.missing, *listed(settings.missing_values, "|"))
        schema = replace(
            written,
            columns=tuple(columns.values()),
            missing=settings.missing,
            file=replace(written.file, missing=missing),
        )
        return cls(
            target,
            settings.task_column,
            (text.name,) if text else inputs,
            schema,
            values,
            by_name=alone,
            whose=not alone,
            strict=settings.strict,
            is_known=alone or bool(settings.num_classes) or _task(settings) != CLASSIFICATION.name,
            text=text,
        )

    def of_inputs(self, path: Path, columns: Sequence[Column]) -> Schema:
        """Returns the schema of columns of inputs, of whose kinds those that are none are left out.

        Args:
            path: Where they are, for messages.
            columns: The columns.

        Raises:
            DataError: Values had to be declared, or are too many; or what stands for a column that
                a table lacks is none of its values, or no number; it names all these columns.
        """
        found, faults = list[Column](), list[Fault]()
        for column in columns:
            kind = column.kind or ("category" if column.values else "number")
            if kind == "whole" and not self.schema.column(column.name).kind:
                kind = "number"  # other sites' may be others
            if kind not in INPUTS or column.role != "input":
                continue
            text = ""
            if kind == "category" and self.values.needed and not self._is_declared(column.name):
                text = (
                    f"{column.name} is text, whose values other nodes may hold others of: declare "
                    f"them for the run, as categories={column.name}=A|B|..."
                )
            elif len(column.values) > _MOST:
                got = f"at most {_MOST} values, got {len(column.values)}"
                text = f"{column.name} must have {got}"
            default: float | str | None = column.default
            if default is not None and not (kind == "category" and default in column.values):
                try:
                    default = float(default) if kind != "category" else nan
                except ValueError:
                    default = nan
                if not isfinite(default):
                    values = few_names(column.values)
                    wanted = f"one of {values}" if kind == "category" else "a number"
                    text = must(f"optional-columns, of {column.name}", column.default, wanted)
            faults += [Fault((), f"{path}: {text}")] if text else []
            found.append(replace(column, kind=kind, default=default))
        if faults:
            raise DataError(*faults)
        return replace(self.schema, columns=tuple(found))

    def _is_declared(self, name: str) -> bool:
        return name in self.schema.by_name and bool(self.schema.by_name[name].values)

    @property
    def defaults(self) -> dict[str, float | str]:
        """By name of a column that tables may lack, the value that stands for it there."""
        each = {name: self.schema.column(name).default for name in self.inputs}
        return {name: value for name, value in each.items() if value is not None}

    def check_task(self, path: Path, names: Collection[str]) -> None:
        """Refuses rows that lack the column of their clients, where they are several clients'.

        Raises:
            DataError: There is no such column, unless it is the default.
        """
        if self.task != Columns().task and self.whose and self.task not in names:
            held = few_names(names) or "nothing"
            raise DataError(f"{path} must have {self.task}, as task-column says; it has {held}")


def _check_alone(written: Schema, text: str, others: Collection[str]) -> None:
    """Refuses a schema that has another input beside a text."""
    inputs = [c.name for c in written.columns if c.role == "input" and c.kind in _INPUTS]
    beside = [name for name in inputs if name not in (text, *others)]
    if beside:
        line = f'columns.{beside[0]} = {{kind = "ignored"}}'
        got = f"got {few_names(beside)}: write {line}"
        raise DataError(f"schema must have no input beside the text {text}, {got}")


def _task(settings: DataSettings) -> str:
    task: str = getattr(settings, "task", CLASSIFICATION.name)
    return task


def name_order(name: str) -> list[str | int]:
    """Returns a key to sort names by, in which x2 comes before x10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def listed(text: str, separator: str) -> tuple[str, ...]:
    """Returns the parts of a setting that lists some."""
    return tuple(part.strip() for part in text.split(separator) if part.strip())


def _by_column(key: str, text: str, example: str) -> dict[str, str]:
    """Reads a setting such as ``color=red; size=small``: by name of a column, what is said of it.

    Args:
        key: The setting.
        text: Its value.
        example: A description of such values, for messages.

    Raises:
        DataError: If it is something else.
    """
    found: dict[str, str] = {}
    for part in filter(str.strip, text.split(";")):
        name, _, said = (each.strip() for each in part.partition("="))
        if not name or not said or name in found:
            raise DataError(must(key, text, example))
        found[name] = said
    return found
