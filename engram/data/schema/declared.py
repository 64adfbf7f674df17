"""Settings of a table as one schema: its columns' kinds and roles."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, Self

from engram.core.checks import clash
from engram.data.schema.columns import INPUTS, MOST_VALUES, Column, Role, Schema
from engram.data.schema.written import key, line, read_schema
from engram.scoring.tasks import CLASSIFICATION, SURVIVAL, TASKS
from engram.settings.data import DataSettings
from engram.settings.errors import DataError, few_names

_INPUTS: Final = {*INPUTS, "text", ""}
_TARGET: Final = str(DataSettings.defaults()["target-column"])
_CLIENT: Final = str(DataSettings.defaults()["task-column"])  # which rows need not have


class Declared(NamedTuple):
    """A table as settings declare it.

    Attributes:
        schema: What is known of its columns; it has those of the target and of the clients.
        alone: Whether its rows are one client's. Others may hold other values, and have their
            columns in another order.
        strict: Whether a column of which nobody can be sure is refused.
        is_known: Whether it is said what the target is.
        may_have_codes: Whether the target is numbers by the task alone.
        drop: Columns that are no inputs.
        text: The column of texts, if that is the input.
        survival: Whether the target is the time of an event, which columns of the roles ``event``,
            ``entry`` and ``weight`` belong to.
        paired: Whether targets are such times with their events, as networks take them.
    """

    schema: Schema
    alone: bool = False
    strict: bool = True
    is_known: bool = True
    may_have_codes: bool = False
    drop: tuple[str, ...] = ()
    text: Column | None = None
    survival: bool = False
    paired: bool = False

    @property
    def target(self) -> str:
        """Name of the column to predict."""
        return self.schema.of_role("target")

    @property
    def client(self) -> str:
        """Name of the column of clients; it may be missing."""
        return self.schema.of_role("client")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns of inputs; empty for all others that a table has."""
        every = self.schema.columns if self.schema.closed else ()
        return tuple(c.name for c in every if c.role == "input" and c.kind != "ignored")

    @property
    def defaults(self) -> dict[str, float | str]:
        """By name of a column that tables may lack, the value that stands for it there."""
        each = {name: self.schema.by_name[name].default for name in self.inputs}
        return {name: value for name, value in each.items() if value is not None}

    def with_numbers(self) -> Self:
        """Returns the table with a target of numbers."""
        columns = (
            replace(c, kind="number", values=()) if c.role == "target" else c
            for c in self.schema.columns
        )
        known = replace(self.schema, columns=tuple(columns))
        codes = self.may_have_codes or not self.schema.column(self.target).kind
        return self._replace(schema=known, is_known=True, may_have_codes=codes)


def declare(settings: DataSettings, *, alone: bool = False, drop: tuple[str, ...] = ()) -> Declared:
    """Writes settings of a table into a schema.

    For ``alone`` and ``drop`` see ``Declared``.

    Raises:
        DataError: Settings cannot be read, or do not go together.
    """
    s, text = settings, settings.text
    inputs = (text.name,) if text else listed(s.input_columns, ",")
    written = read_schema(s.schema) if s.schema else Schema()
    time = written.of_role("time")
    survival = bool(time) and s.target_column in (_TARGET, time)
    target = time if survival else s.target_column
    _check_survival(written, target, survival=survival, predicted=_predicts_times(s))
    _check_roles(written, inputs, survival=survival)
    if s.task_column == target:
        raise DataError(clash("task-column", s.task_column, "another column than target-column"))
    roles: dict[str, Role] = {s.task_column: "client", target: "target"}
    if both := [name for name in inputs if name in roles]:
        wanted = f"without {few_names(both)}, which are targets or clients"
        raise DataError(clash("input-columns", s.input_columns, wanted))
    known = written.by_name
    columns = {name: replace(known.get(name, Column(name)), role=roles[name]) for name in roles}
    columns |= {c.name: c for c in written.columns if c.name not in roles}
    if text:
        _check_alone(written, text.name, roles)
    first = [columns.pop(name, Column(name)) for name in inputs]
    others = [
        replace(c, kind="ignored") if inputs and c.role == "input" else c for c in columns.values()
    ]
    schema = Schema((*first, *others), s.missing, closed=bool(inputs), file=written.file)
    optional = [c.name for c in written.columns if c.default is not None and c.kind != "ignored"]
    if strange := [name for name in optional if name not in inputs]:
        wanted = f"with all columns of inputs, {few_names(strange)} among them"
        raise DataError(clash("input-columns", s.input_columns, wanted, "schema"))
    if s.missing == "refuse" and optional:
        wanted = f"median or indicator where a table may lack {few_names(optional)}"
        raise DataError(clash("missing", s.missing, wanted, "schema"))
    task: str = getattr(s, "task", CLASSIFICATION.name)
    is_known = alone or bool(s.num_classes) or task != CLASSIFICATION.name
    found = Declared(schema, alone, s.strict, is_known, drop=drop, text=text)
    found = found._replace(survival=survival, paired=task == SURVIVAL.name)
    return found if TASKS[task].targets == "classes" else found.with_numbers()


def _check_alone(written: Schema, text: str, roles: Collection[str]) -> None:
    inputs = [c.name for c in written.columns if c.role == "input" and c.kind in _INPUTS]
    beside = [name for name in inputs if name not in (text, *roles)]
    if beside:
        line = f'columns.{beside[0]} = {{kind = "ignored"}}'
        got = f"got {few_names(beside)}: write {line}"
        raise DataError(f"schema must have no input beside the text {text}, {got}")


def _predicts_times(settings: DataSettings) -> bool | None:
    """Whether the method predicts times of events; None where settings do not say.

    Networks may be given times and events beside their inputs, without columns.
    """
    if getattr(settings, "task", "") == SURVIVAL.name:
        return settings.source.has_columns or None
    own = getattr(settings, "own", None)
    return None if own is None else bool(own.survival)


def _check_survival(schema: Schema, target: str, *, survival: bool, predicted: bool | None) -> None:
    """Refuses a target that the method cannot predict by the schema's roles.

    Raises:
        DataError: It is an event; or a time of events, of a method that predicts none; or of one
            that does, the schema names no column of times or of events.
    """
    if not survival and target and target == schema.of_role("event"):
        raise DataError(
            f"{target} is an event (columns.{target}.role), which no method predicts: choose "
            "another target-column, or give it the role target, or to another column the role time"
        )
    if survival and predicted is False:
        raise DataError(
            f"{target} is a time of events (columns.{target}.role), which task=survival and a "
            "method of survival predict (engram methods): choose one, or another target-column"
        )
    if predicted and schema.of_role("time") and not survival:
        wanted = f"{schema.of_role('time')}, as the schema has the role time"
        raise DataError(clash("target-column", target, wanted, "schema"))
    for role in ("time", "event") if survival or predicted else ():
        if not schema.of_role(role):
            line = f'columns.NAME = {{role = "{role}"}}'
            raise DataError(f"schema must name the column of the {role}: write {line}")


def _check_roles(schema: Schema, inputs: Collection[str], *, survival: bool) -> None:
    """Refuses a schema that contradicts a run.

    Raises:
        DataError: A column of another role is named as an input; or rows have weights, which
            training has none for.
    """
    roles = {column.name: column.role for column in schema.columns if column.role != "input"}
    for name in filter(roles.__contains__, inputs):
        why = f"since its role is {roles[name]}"
        raise DataError(f"{name} must be no input (input-columns), {why}")
    if (weight := schema.of_role("weight")) and not survival:
        raise DataError(
            f"{weight} is the weight of rows (columns.{weight}.role), which training has "
            f'none for yet: write columns.{weight} = {{kind = "ignored"}}'
        )


def fault_of_values(column: Column, values: Sequence[str], *, alone: bool) -> str:
    """The reason why values of a column of text cannot be used; or empty."""
    name = column.name
    if alone and not column.values:
        return (
            f"{name} is text, whose values other nodes may hold others of: declare them for the "
            f"run, as {declaring(name)}"
        )
    if len(values) <= MOST_VALUES:
        return ""
    way = line(name, {"kind": "ignored"})
    return f"{name} must have at most {MOST_VALUES} values, got {len(values)}: {way} leaves it out"


def name_order(name: str) -> list[str | int]:
    """A key that sorts x2 before x10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def listed(text: str, separator: str) -> tuple[str, ...]:
    """Returns the parts of a setting that lists some."""
    return tuple(part.strip() for part in text.split(separator) if part.strip())


def check_client(
    path: Path, declared: Declared, names: Collection[str], *, always: bool = False
) -> None:
    """Refuses rows that lack the column of their clients, where they are several clients'.

    Raises:
        DataError: There is no such column, unless it is the default and need not be there always.
    """
    needless = declared.alone or (not always and declared.client in ("", _CLIENT))
    if not needless and declared.client not in names:
        has = few_names(names) or "nothing"
        raise DataError(f"{path} must have {declared.client}, as task-column says; it has {has}")


def declaring(name: str) -> str:
    """Returns the line of a schema that declares the values of a column, to be filled in."""
    return f'schema=\'columns.{key(name)} = {{values = ["A", "B", ...]}}\''
