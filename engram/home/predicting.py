"""Predicts rows by an exported model."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pandas as pd
from torch.utils._pytree import tree_leaves

from engram.core.arrays import Bools
from engram.core.checks import must, require
from engram.core.process_modes import own_modes
from engram.data.new_rows import read_new_rows
from engram.data.ranges import far_away, inputs_in, outside
from engram.home.exported import runner
from engram.home.onnx_sandbox import USUAL, Limits
from engram.home.prediction_intervals import USUAL as LEVEL
from engram.home.prediction_intervals import Columns, Interval, columns_of, ends_of, outputs_of
from engram.settings.errors import Refused, few_names, one_line
from engram.settings.files import replace_file

IMPUTED: Final = "imputed"
OUTSIDE: Final = "outside"
"""Columns that name, of each row, the inputs that were missing, and those far from their ranges.

They are written where some row has such.
"""

_ELSEWHERE: Final = (
    "{} lies far from the rows that the model has learned from ({}): are the units the same?"
)


class Predictions(NamedTuple):
    """A model's predictions for rows."""

    table: pd.DataFrame
    notes: list[str]  # what is strange about the rows

    @property
    def is_strange(self) -> bool:
        """Whether a value was imputed, or lies far from its range."""
        return bool({IMPUTED, OUTSIDE} & {*self.table} or self.notes)


@own_modes()
def predict(
    model: Path, rows: Path, out: Path, level: float | None = None, limits: Limits = USUAL
) -> Predictions:
    """Writes a model's predictions of rows to a CSV file, and returns them.

    By default, intervals hold with probability 0.9, if the model has such; for the rows see
    ``read_new_rows``.

    Raises:
        Refused: If the model cannot be used, or the rows are others than it knows.
    """
    with runner(model, limits) as (exported, runs):
        interval = _interval(model, exported.intervals, level)
        found = read_new_rows(rows, exported.kind, exported.settings)
        with _fitting(model):
            outputs = outputs_of(runs, found.x, found.size)
            for leaf in tree_leaves(outputs):
                require(len(leaf) == found.size, "rows of outputs", len(leaf), f"{found.size}")
            predicted = columns_of(exported.outputs, outputs, exported.classes)
            if interval:
                counts = getattr(exported.experiment.own, "family", "") == "poisson"
                least = 0.0 if counts else -inf
                predicted |= ends_of(outputs, interval, exported.classes, least)
    schema = exported.kind.schema
    predicted |= _marks(IMPUTED, found.missing, found.size)
    predicted |= _marks(OUTSIDE, outside(exported.ranges, found.x, schema), found.size)
    taken = [name for name in predicted if name in found.others]
    if taken:
        raise Refused(f"{rows} has the columns {few_names(taken)}, which predictions are called")
    others = {name: list(column) for name, column in found.others.items()}
    table = pd.DataFrame({**others, **predicted})
    try:
        beside = found.beside and found.beside(table[[*predicted]])
        replace_file(out, beside or table.to_csv(index=False).encode())
    except OSError as error:
        raise Refused(f"{out} cannot be written: {error.strerror}") from error
    except UnicodeEncodeError as error:
        raise Refused(f"{out} cannot be written as {rows} is: {error}") from error
    strange = far_away(exported.ranges, inputs_in(found.x, schema))
    return Predictions(table, [_ELSEWHERE.format(rows, few_names(strange))] if strange else [])


def _marks(what: str, rows: Mapping[str, Bools], size: int) -> Columns:
    """Returns a column of the marked inputs' names, unless no row has one."""
    found = np.full(size, "", dtype=object)
    for name, some in rows.items():
        found[some] += f"; {name}"
    return {what: [names[2:] or None for names in found]} if found.any() else {}


@contextmanager
def _fitting(model: Path) -> Iterator[None]:
    """Refuses a model that does something else than its description says."""
    try:
        yield
    except Refused as error:
        raise type(error)(f"{model} cannot predict them: {error}") from error
    except (IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        why = one_line(" ".join(str(error).split()))
        raise Refused(f"{model} does not fit what {model}/model.json says: {why}") from error


def _interval(model: Path, known: Sequence[Interval], level: float | None) -> Interval | None:
    found = {each.level: each for each in known}
    if level is None:
        return found.get(LEVEL)
    if not found:
        raise Refused(
            f"{model} has no intervals: they need a client's model that predicts values, and rows "
            "that it has not learned from"
        )
    if level not in found:
        raise Refused(must("interval", level, f"one of {few_names(found)}"))
    return found[level]
