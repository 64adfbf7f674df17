"""Rules of targets: what may be no class, and which numbers alone tell it."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engram.data.schema.kinds import CLASSES, ROWS, ask, blanks, dates, decorated, texts, thousands
from engram.data.schema.typed import Cells
from engram.data.schema.written import Question, line

_RARE: Final = 5  # rows of a class, of which fewer may lie apart by chance
_SAMPLE: Final = 1000  # rows that are looked at before all are


def classes(cells: Cells) -> Question | None:
    """A target of more than 20 different whole numbers, or with gaps among more than two."""
    if cells.numbers is None or not cells.whole:
        return None
    many, gaps = len(cells.texts), np.ptp(cells.numbers) >= len(cells.texts)
    if many <= 2 or (many <= CLASSES and not gaps):
        return None
    looks = f"is {many} different whole numbers{' with gaps' if gaps else ''}, to predict"
    looks += " as classes or, by task=regression, as numbers"
    question = ask(cells, looks, {"kind": "number"}, {"kind": "category"})
    return question._replace(rule=classes.__name__)


def asked_of_target(cells: Cells, clients: npt.NDArray[Any] | None) -> Question | None:
    """Returns the first question about a target of which nothing is known."""
    for rule in (dates, decorated, thousands, texts):
        if (question := rule(cells)) is not None:
            marks = question.choices if rule in (decorated, thousands) else ()
            choices = (*marks, line(cells.column.name, {"kind": "category"}))
            return question._replace(choices=choices, rule=rule.__name__)
    return blanks(cells) or shifted(cells, clients) or classes(cells)


def shifted(cells: Cells, clients: npt.NDArray[Any] | None) -> Question | None:
    """Three consecutive whole numbers: some clients have the lower two, the others the upper.

    These may code the same two values, as 0 and 1 at some hospitals and 1 and 2 at others.
    """
    if clients is None or cells.numbers is None or len(cells.texts) != 3:
        return None
    low, middle, high = np.sort(cells.numbers)
    held: dict[str, set[float]] = {}
    for client, row in {*zip(clients.tolist(), cells.rows.tolist(), strict=True)}:
        held.setdefault(str(client), set()).add(float(cells.numbers[row]))
    lower = [client for client, own in held.items() if own == {low, middle}]
    upper = [client for client, own in held.items() if own == {middle, high}]
    if not (lower and upper and len(lower) + len(upper) == len(held) and high - low == 2):
        return None
    first, then = (", ".join(sorted(some)[:3]) for some in (lower, upper))
    looks = f"is {low:g} or {middle:g} at {first}, and {middle:g} or {high:g} at {then}"
    looks += " (recode it if these mean the same)"
    question = ask(cells, looks, {"kind": "category"})
    return question._replace(cells=(), rule=shifted.__name__)


def tells(numbers: npt.NDArray[np.float64], target: Cells) -> bool:
    """Whether numbers, (n,), of any two classes lie apart, or rise or fall with a target's."""
    values = None if len(target.texts) <= CLASSES else target.numbers
    rare = values is None and (len(target.texts) < 2 or target.counts.min() < _RARE)
    if target.size < ROWS or rare or (values is None and len(target.texts) > CLASSES):
        return False
    for step in (len(numbers) // _SAMPLE + 1, 1):  # most do not in a few rows
        x, y = numbers[::step], target.rows[::step]
        order = np.argsort(y if values is None else values[y], kind="stable")
        x, y = x[order], y[order]
        if values is None:
            begin = np.flatnonzero(np.diff(y, prepend=-2))
            low, high = np.fmin.reduceat(x, begin), np.fmax.reduceat(x, begin)
            by = np.argsort(low)
            apart = bool((high[by][:-1] < low[by][1:]).all())
        else:
            other, steps = y[1:] != y[:-1], np.diff(x)
            apart = any(((s > 0) == other).all() and (s >= 0).all() for s in (steps, -steps))
        if not apart:
            return False
    return True
