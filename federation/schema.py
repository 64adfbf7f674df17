"""Kinds of rows: their schema, their shape, and their moments."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from engram.units import Moments, Units
from federation.data.schema.columns import Schema
from federation.errors import brief, few_names, one_line

MOST_ROWS: Final = 2**31
"""Rows are weights: a client must have fewer."""


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
