"""Kinds of rows: their shape and moments, and the schema of a table's columns.

The schema says what each column holds, what it is for, and how it is written. It is fitted once,
stored with a run and its exports, and read by networks, methods of tables, newcomers and
predictions.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import isnan
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import Field, StringConstraints, TypeAdapter
from pydantic_core import from_json

from engram.core.standardization import Moments, Units
from engram.settings.errors import brief, few_names, one_line

MOST_ROWS: Final = 2**31
"""Rows are weights: a client must have fewer."""

ColumnKind = Literal[
    "", "number", "whole", "category", "ordered", "truth", "text", "date", "identifier", "ignored"
]
Role = Literal["input", "target", "client", "part", "weight", "event", "time", "entry"]

MOST_VALUES: Final = 1000
"""Values of a column of text, each of which is an input, or an output."""

INPUTS: Final = frozenset({"number", "whole", "category", "ordered", "truth", "date"})
"""Kinds of columns that are inputs, of which those of a category are one for each value.

A ``text`` is an input, too, where it is the only one.
"""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    How a site writes its cells is its own affair: sites whose columns differ in that alone have the
    same schema.

    Attributes:
        name: Its name.
        kind: What its cells are: a ``number``, a ``whole`` number, one of the values of a
            ``category``, of an ``ordered`` one, a ``truth`` value (the second of two values is
            true), ``text``, a ``date``, an ``identifier``, or something that is ``ignored``; empty
            where that is inferred.
        values: Those that a cell may have, in their order; empty for any.
        fill: The value that stands for a missing one, where ``Schema.missing`` is ``median``. It
            differs between clients that have the same schema.
        default: The value that stands for a missing one where there is no ``fill``, such as in
            tables that lack the column; None if every table must have it.
        role: What it is for.
        unit: The unit of its numbers; cells may end or begin with it.
        since: The day from which its dates count days.
        low: The least number that is usual.
        high: The greatest, likewise.
        codes: By a value as this table writes it, the value that is meant.
        missing: Cells that stand for a missing value, besides empty ones.
        decimal: The decimal mark of its numbers; empty for the file's.
        thousands: The mark between thousands; empty for the file's.
        factor: What its numbers are multiplied by to be in ``unit``.
        format: How its dates are written, as ``strptime`` has it; empty for ISO 8601.
        tokenizer: What makes tokens of a ``text``: ``words`` or ``characters``, the commonest in
            training rows, or a file, a ``tokenizer.json`` or one word a line.
        length: Tokens of a text that count; fewer are padded with 0.
        vocabulary: Most tokens of a vocabulary.
        least: Training rows of a client in which a word must be to be told by its node.
    """

    name: str
    kind: ColumnKind = ""
    values: tuple[str, ...] = ()
    fill: float | str | None = field(default=None, compare=False)
    default: float | str | None = None
    role: Role = "input"
    unit: str = field(default="", compare=False)
    since: str = ""
    low: float | None = field(default=None, compare=False)
    high: float | None = field(default=None, compare=False)
    codes: dict[str, str] = field(default_factory=dict, compare=False)
    missing: tuple[str, ...] = field(default=(), compare=False)
    decimal: Literal["", ".", ","] = field(default="", compare=False)
    thousands: Literal["", ",", ".", " ", "'"] = field(default="", compare=False)
    factor: float = field(default=1.0, compare=False)
    format: str = field(default="", compare=False)
    tokenizer: str = field(default="words", compare=False)
    length: Annotated[int, Field(strict=True, ge=1, le=2**16)] = field(default=128, compare=False)
    vocabulary: Annotated[int, Field(strict=True, ge=1, le=10**6)] = field(
        default=5000, compare=False
    )
    least: Annotated[int, Field(strict=True, ge=1, le=10**6)] = field(default=5, compare=False)

    @property
    def vocabulary_file(self) -> Path | None:
        """The file of a text's vocabulary; None of one that is fitted on training rows."""
        return None if self.tokenizer in ("words", "characters") else Path(self.tokenizer)

    @property
    def is_category(self) -> bool:
        """Whether each of its values is an input of its own."""
        return self.kind == "category" or (not self.kind and bool(self.values))

    def told(self) -> "Column":
        """The public part: nothing of the rows, nor of their dialect."""
        told = self.name, self.kind, self.values, None, self.default
        return Column(*told, self.role, self.unit, self.since)

    def at_site(self, own: "Column") -> "Column":
        """Returns the column as a site writes it, by the site's own schema."""
        return replace(
            self,
            kind=self.kind or own.kind,
            unit=own.unit or self.unit,
            since=self.since or own.since,
            low=self.low if own.low is None else own.low,
            high=self.high if own.high is None else own.high,
            codes=own.codes,
            missing=tuple(dict.fromkeys((*self.missing, *own.missing))),
            decimal=own.decimal,
            thousands=own.thousands,
            factor=own.factor,
            format=own.format,
        )


@dataclass(frozen=True)
class File:
    """The dialect of a text file that holds a table, and the place of one in a workbook.

    Attributes:
        separator: The mark between cells; empty where it is found.
        encoding: The encoding of its text.
        skip: How many lines are above the names, or the rows.
        decimal: The decimal mark of its numbers.
        thousands: The mark between thousands; empty for none.
        names: Names of the columns, of a file without a line of them.
        missing: Cells that stand for a missing value in any column.
        sheet: The sheet of a workbook; empty for the only one that holds a table.
    """

    separator: Annotated[str, StringConstraints(max_length=1)] = ""
    encoding: str = "utf-8"
    skip: int = 0
    decimal: Literal[".", ","] = "."
    thousands: Literal["", ",", ".", " ", "'"] = ""
    names: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    sheet: str = ""


@dataclass(frozen=True)
class Schema:
    """The columns of a table's inputs.

    Attributes:
        columns: The columns, in the order of inputs.
        missing: Treatment of missing values, as the setting ``missing`` says.
        of_arrays: Whether columns are those of arrays that name them: networks take these as they
            are, unless ``standardize`` says otherwise. Nodes with either have the same schema.
        reference: Whether the first value of a category is no input of its own, but what the others
            are compared with: beside an intercept, a linear model determines no more.
        closed: Whether columns that a table has besides are no inputs.
        file: How a text file writes it.
    """

    columns: tuple[Column, ...] = ()
    missing: Literal["refuse", "median", "indicator"] = "refuse"
    of_arrays: bool = field(default=False, compare=False)
    reference: bool = False
    closed: bool = field(default=False, compare=False)
    file: File = field(default=File(), compare=False)

    @classmethod
    def of_numbers(cls, names: Sequence[str], *, of_arrays: bool = False) -> Self:
        """Returns the schema of columns of numbers."""
        return cls(tuple(Column(str(name)) for name in names), of_arrays=of_arrays)

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """The columns by their names."""
        return {column.name: column for column in self.columns}

    def column(self, name: str) -> Column:
        """The column of a name, with marks and missing codes of the file."""
        column, file = self.by_name.get(name, Column(name)), self.file
        if not (file.decimal != "." or file.thousands or file.missing):
            return column
        return replace(
            column,
            decimal=column.decimal or file.decimal,
            thousands=column.thousands or file.thousands,
            missing=(*column.missing, *file.missing),
        )

    def of_role(self, role: Role) -> str:
        """Returns the name of the column of a role; empty if there is none."""
        return next((column.name for column in self.columns if column.role == role), "")

    @property
    def texts(self) -> tuple[str, ...]:
        """Names of the columns of text that are inputs: a network takes one, by tokens."""
        return tuple(c.name for c in self.columns if c.kind == "text" and c.role == "input")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs: NAME, NAME=VALUE of a category, and "NAME is missing"."""
        return tuple(name for name, _ in self._inputs())

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Whether each input is a number, and no indicator."""
        return tuple(number for _, number in self._inputs())

    def levels(self, column: Column) -> tuple[str, ...]:
        """Returns the values of a category that are inputs of their own; of a single one, none."""
        return column.values[1 if self.reference or len(column.values) == 1 else 0 :]

    def _inputs(self) -> list[tuple[str, bool]]:
        found: list[tuple[str, bool]] = []
        for column in self.columns:
            name, levels = column.name, self.levels(column)
            several = [(f"{name}={value}", False) for value in levels]
            found += several if column.is_category else [(name, True)]
            found += [(f"{name} is missing", False)] if self.missing == "indicator" else []
        return found

    def with_fills(self, fills: Sequence[Any]) -> Self:
        """Returns the schema with these values for missing ones; 0 stands for NaN."""
        pairs = zip(self.columns, fills, strict=True)
        columns = (
            replace(c, fill=(0.0 if isnan(f) else float(f)) if isinstance(f, float) else f)
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
        """Converts it for ``from_json``, without defaults."""
        found: dict[str, Any] = adapter(Schema).dump_python(
            self, mode="json", exclude_defaults=True
        )
        return found

    def public(self) -> Self:
        """The public part: nothing of the rows, nor of their dialect."""
        columns = tuple(column.told() for column in self.columns)
        return replace(self, columns=columns, file=File())

    def told(self) -> str:
        """Returns ``public`` for ``from_json``."""
        return json.dumps(self.public().to_json())

    def at_site(self, own: "Schema") -> "Schema":
        """Returns a federation's schema as a site writes its table, by the site's own schema."""
        known = {c.name: self.by_name.get(c.name, Column(c.name)) for c in own.columns}
        columns = self.by_name | {c.name: known[c.name].at_site(c) for c in own.columns}
        missing = tuple(dict.fromkeys((*self.file.missing, *own.file.missing)))
        file = self.file if own.file == File() else replace(own.file, missing=missing)
        return replace(self, columns=tuple(columns.values()), file=file)

    @classmethod
    def from_json(cls, found: Any) -> "Schema":
        """Reads the JSON of a schema, parsed or as a text, which is untrusted.

        Raises:
            ValueError: If it is something else.
        """
        try:
            given = from_json(found) if isinstance(found, str) else found
            if "columns" not in given:
                raise ValueError("no columns")
            if "missing_values" in given:  # as it was until 0.1
                given = {**given, "file": {"missing": given["missing_values"]}}
            schema: Schema = adapter(Schema).validate_python(given)
        except (ValueError, TypeError) as error:
            raise ValueError(f"schema must be columns with names, got {brief(found)}") from error
        return schema


@cache
def adapter(kind: type) -> TypeAdapter[Any]:
    """Returns pydantic's reader of instances of a class."""
    return TypeAdapter(kind)


class Kind(NamedTuple):
    """The kind of data that a node has, the same for all nodes of a run.

    Attributes:
        inputs: Dtype and shape of an input row, see ``engram.data.federated``; empty for methods of
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
        """Converts it for ``from_json``, without empty entries."""
        schema = {} if self.schema is None else self.schema.to_json()
        more = {"classes": list(self.classes), "schema": schema, "units": self.units.to_json()}
        found = {"inputs": self.inputs, "outputs": self.outputs}
        return found | {name: part for name, part in more.items() if part}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Reads the entries of ``to_json`` among others."""
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
    *(f"{of}-{what}" for of in ("inputs", "targets") for what in ("rows", "means", "squares")),
    *("words", "word-rows"),
}
"""Keys of ``Told.to_config``."""


class Told(NamedTuple):
    """Moments of a node's training rows, which a run's units are fitted on.

    Attributes:
        inputs: Those of columns of inputs; None if the run does not standardize them together.
        targets: Those of targets; None likewise.
        words: Words of its texts, each with its number of rows; None if no vocabulary is fitted.
    """

    inputs: Moments | None = None
    targets: Moments | None = None
    words: Mapping[str, int] | None = None

    def to_config(self) -> dict[str, int | list[float] | list[str] | list[int]]:
        """Returns its entries in the answer to the roster query."""
        found: dict[str, int | list[float] | list[str] | list[int]] = {}
        for name, part in (("inputs", self.inputs), ("targets", self.targets)):
            if part is not None:
                found |= {f"{name}-rows": part.rows, f"{name}-means": list(part.means)}
                found |= {f"{name}-squares": list(part.squares)}
        if self.words is not None:
            found |= {"words": list(self.words), "word-rows": list(self.words.values())}
        return found
