"""Kinds of rows: the schema of a table's columns, rows' kind, and their moments.

The schema is fitted once, stored with a run and its exports, and read by networks, methods of
tables, newcomers and predictions; ``federation.data.encoding`` fits it, and encodes rows by it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, Literal, NamedTuple, Self

import numpy as np
from pydantic import TypeAdapter

from engram.units import Moments, Units
from federation.errors import brief, few_names, one_line

MOST_ROWS: Final = 2**31
"""Rows are weights: a client must have fewer."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its name.
        values: Those of a column of text, each of which is an input of its own; None of numbers.
        fill: The value that stands for a missing one, where ``Schema.missing`` is ``median``. It
            differs between clients that have the same schema.
        default: The value that stands for a missing one where there is no ``fill``, such as in
            tables that lack the column; None if every table must have it.
    """

    name: str
    values: tuple[str, ...] | None = None
    fill: float | str | None = field(default=None, compare=False)
    default: float | str | None = None


@dataclass(frozen=True)
class Schema:
    """The columns of a table's inputs.

    Attributes:
        columns: The columns, in the order of inputs.
        missing: Treatment of missing values, as the setting ``missing`` says.
        missing_values: Texts that stand for a missing value besides empty cells.
        of_arrays: Whether columns are those of arrays that name them: networks take these as they
            are, unless ``standardize`` says otherwise. Nodes with either have the same schema.
        reference: Whether the first value of a column of text is no input of its own, but what the
            others are compared with: beside an intercept, a linear model determines no more.
    """

    columns: tuple[Column, ...]
    missing: Literal["refuse", "median", "indicator"] = "refuse"
    missing_values: tuple[str, ...] = ()
    of_arrays: bool = field(default=False, compare=False)
    reference: bool = False

    @classmethod
    def of_numbers(cls, names: Sequence[str], *, of_arrays: bool = False) -> Self:
        """Returns the schema of columns of numbers."""
        return cls(tuple(Column(str(name)) for name in names), of_arrays=of_arrays)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def texts(self) -> dict[str, tuple[str, ...]]:
        """Values of the columns of text, by name."""
        return {c.name: c.values for c in self.columns if c.values is not None}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs: NAME of numbers, NAME=VALUE of text, and "NAME is missing"."""
        return tuple(name for name, _ in self._inputs())

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Whether each input is a number, and no indicator."""
        return tuple(number for _, number in self._inputs())

    def levels(self, column: Column) -> tuple[str, ...]:
        """Returns the values of a column of text that are inputs of their own."""
        return (column.values or ())[1 if self.reference else 0 :]

    def _inputs(self) -> list[tuple[str, bool]]:
        found: list[tuple[str, bool]] = []
        for column in self.columns:
            name, levels = column.name, self.levels(column)
            text = column.values is not None
            found += [(f"{name}={v}", False) for v in levels] if text else [(name, True)]
            found += [(f"{name} is missing", False)] if self.missing == "indicator" else []
        return found

    def with_fills(self, fills: Sequence[Any]) -> Self:
        """Returns the schema with these values for missing ones; 0 stands for NaN."""
        pairs = zip(self.columns, fills, strict=True)
        columns = (
            replace(c, fill=float(np.nan_to_num(f)) if isinstance(f, float) else f)
            for c, f in pairs
        )
        return replace(self, columns=tuple(columns))

    def unlike(self, other: "Schema") -> str:
        """Describes how its inputs differ from those of most nodes; empty if they do not."""
        its, usual = self.inputs, other.inputs
        if set(its) != set(usual):
            lacking = few_names(name for name in usual if name not in its)
            more = few_names(name for name in its if name not in usual)
            return f"it lacks the inputs {lacking or 'none'}, and has {more or 'none'} besides"
        if its != usual:
            order = f"{few_names(its)}, and the run's in {few_names(usual)}"
            return f"its inputs are in the order {order}: set input-columns, or reorder its file"
        return ""

    def to_json(self) -> dict[str, Any]:
        """Returns what ``from_json`` reads, without what is as by default."""
        found: dict[str, Any] = _adapter().dump_python(self, mode="json", exclude_defaults=True)
        return found

    def told(self) -> str:
        """Returns what a node tells of it, for ``from_json``: no value of its rows."""
        return json.dumps(self.with_fills([None] * len(self.columns)).to_json())

    @classmethod
    def from_json(cls, found: Any) -> "Schema":
        """Reads what ``to_json`` returned, or that as a text, of whoever wrote it.

        Raises:
            ValueError: If it is something else.
        """
        read = _adapter().validate_json if isinstance(found, str) else _adapter().validate_python
        try:
            schema: Schema = read(found)
        except ValueError as error:
            raise ValueError(f"schema must be columns with names, got {brief(found)}") from error
        return schema


@cache
def _adapter() -> Any:
    return TypeAdapter(Schema)


class Kind(NamedTuple):
    """The kind of data that a node has, the same for all nodes of a run.

    Attributes:
        inputs: Dtype and shape of an input row, see ``federation.shapes``; empty for methods of
            tables.
        outputs: Number of classes, or of values or labels to predict; 0 for methods of tables.
        classes: Names of classes, in their order; empty where their numbers are their names.
        schema: The schema of inputs, where these are columns with names.
        units: Units of inputs and targets, which a run fits once. Nodes' own kinds have none.
    """

    inputs: str = ""
    outputs: int = 0
    classes: tuple[str, ...] = ()
    schema: Schema | None = None
    units: Units = Units()

    @classmethod
    def of_table(cls, columns: Sequence[str]) -> Self:
        """Returns the kind of a method of tables, with columns of numbers."""
        return cls(schema=Schema.of_numbers(columns))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the inputs that a method of tables has; empty for networks."""
        return () if self.inputs or self.schema is None else self.schema.inputs

    @property
    def class_names(self) -> list[str]:
        """Names of its classes, or their numbers; or those of values, labels or tokens."""
        return list(self.classes or map(str, range(self.outputs)))

    def to_json(self) -> dict[str, Any]:
        """Returns what ``from_json`` reads, without what is empty."""
        schema = {} if self.schema is None else self.schema.to_json()
        more = {"classes": list(self.classes), "schema": schema, "units": self.units.to_json()}
        found = {"inputs": self.inputs, "outputs": self.outputs}
        return found | {name: part for name, part in more.items() if part}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Reads what ``to_json`` returned, among other entries."""
        schema = Schema.from_json(found["schema"]) if "schema" in found else None
        units = Units.from_json(found.get("units", {}))
        classes = tuple(found.get("classes", ()))
        return cls(found["inputs"], found["outputs"], classes, schema, units)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Kind | None":
        """Reads it from the first row of a run's record; returns None if it is not there."""
        return cls.from_json(row) if "inputs" in row else None

    def unlike(self, most: "Kind") -> str:
        """Describes how it differs from the kind that most nodes have."""
        if bool(self.schema) != bool(most.schema) and self.inputs == most.inputs:
            one, other = ("have", "lack") if self.schema else ("lack", "have")
            names = [each.schema.inputs for each in (self, most) if each.schema]
            named = f"{few_names(names[0])} (in .npz files, x_names)"
            return f"its inputs {one} names, and most nodes' {other} them: {named}"
        if self.schema and most.schema and (why := self.schema.unlike(most.schema)):
            return why
        return f"it has {self._in_words()}, and most nodes have {most._in_words()}"

    def _in_words(self) -> str:
        if not self.inputs:
            target = f" with the classes {few_names(self.classes)}" if self.classes else ""
            return f"a table of {len(self.columns)} columns{target}"
        named = f" ({few_names(self.classes)})" if self.classes else ""
        return f"inputs {one_line(self.inputs)} and {brief(self.outputs)} outputs{named}"


SUMS: Final = {
    f"{of}-{what}" for of in ("inputs", "targets") for what in ("rows", "means", "squares")
}
"""Keys of ``Told.to_config``."""


class Told(NamedTuple):
    """Moments of a node's training rows, which a run's units are fitted on.

    Attributes:
        inputs: Those of columns of inputs; None if the run does not standardize them together.
        targets: Those of targets; None likewise.
    """

    inputs: Moments | None = None
    targets: Moments | None = None

    def to_config(self) -> dict[str, int | list[float]]:
        """Returns its entries in the answer to the roster query."""
        found: dict[str, int | list[float]] = {}
        for name, part in self._asdict().items():
            if part is not None:
                found |= {f"{name}-rows": part.rows, f"{name}-means": list(part.means)}
                found |= {f"{name}-squares": list(part.squares)}
        return found
