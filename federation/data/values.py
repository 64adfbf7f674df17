"""Columns of text: which values there are, and which number each has in the whole federation."""

import re
from collections.abc import Collection, Mapping, Sequence
from math import isfinite, nan
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from engram.checks import Fault, clash, must
from federation.errors import DataError, brief, few_names
from federation.settings.data import DataSettings
from federation.settings.text import TextColumn

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
        missing: What is done where a value of the others is missing; see the setting.
        values: Those of columns of text.
        missing_values: Texts that stand for a missing value.
        by_name: Whether columns of inputs are in the order of their names, and not in the file's,
            unless ``inputs`` gives one: files of other sites may have another.
        defaults: By name of a column that tables may lack, the value that stands for it there.
        text: The column of texts, if that is the input.
    """

    target: str = "y"
    task: str = "task"
    inputs: tuple[str, ...] = ()
    missing: Literal["refuse", "median", "indicator"] = "refuse"
    values: Values = Values()
    missing_values: tuple[str, ...] = ()
    by_name: bool = False
    defaults: Mapping[str, str] = MappingProxyType({})
    text: TextColumn | None = None

    @classmethod
    def of(cls, settings: DataSettings, *, alone: bool = False) -> Self:
        """Returns what settings say of a file's columns.

        Args:
            settings: The settings.
            alone: Whether the file's rows are one client's, and others may hold other values.

        Raises:
            DataError: As ``Values.parse``, or other settings do not go with optional columns.
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
        return cls(
            settings.target_column,
            settings.task_column,
            (text.name,) if text else inputs,
            settings.missing,
            Values.parse(settings.categories, needed=alone),
            listed(settings.missing_values, "|"),
            by_name=alone,
            defaults=defaults,
            text=text,
        )

    def default_of(
        self, path: Path, name: str, values: tuple[str, ...] | None
    ) -> float | str | None:
        """Returns the value that stands for a column where a table lacks it; None if none may.

        Args:
            path: Where the table is, for messages.
            name: The column's name.
            values: Those that it may have, of a column of text.

        Raises:
            DataError: The value that is set is none of its values, or no number.
        """
        if name not in self.defaults:
            return None
        given = self.defaults[name]
        if values is not None and given in values:
            return given
        try:
            number = float(given) if values is None else nan
        except ValueError:
            number = nan
        if not isfinite(number):
            wanted = "a number" if values is None else f"one of {few_names(values)}"
            raise DataError(f"{path}: {must(f'optional-columns, of {name}', given, wanted)}")
        return number

    def check_task(self, path: Path, names: Collection[str]) -> None:
        """Refuses rows that lack the column of their clients, where they are several clients'.

        Raises:
            DataError: There is no such column, unless it is the default.
        """
        if self.task != Columns().task and not self.values.needed and self.task not in names:
            held = few_names(names) or "nothing"
            raise DataError(f"{path} must have {self.task}, as task-column says; it has {held}")


def name_order(name: str) -> list[str | int]:
    """Returns a key to sort names by, in which x2 comes before x10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def row_name(label: Any) -> str:
    """Returns a row's name in messages: its number in the table, or in its client's."""
    return f"row {label[1]} of {label[0]}" if isinstance(label, tuple) else f"row {label}"


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
