"""A printable table of coefficients."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.tables.intervals import Intervals

_NONE: Final = (
    "-: no interval: the rows do not determine it, too many tasks differ, or they are fewer than a "
    "median's interval needs (six of equal weight at level 0.95)"
)


class Summary(NamedTuple):
    """Coefficients with intervals; ``print`` shows them as a table."""

    title: str  # title of the table
    level: float  # level of the intervals, in (0, 1)
    names: Sequence[str]  # names of the columns
    coef: npt.NDArray[np.float64]  # coefficients, shape (d,)
    limits: Intervals  # the intervals
    heading: str  # heading of the marks
    marks: Sequence[str]  # remark on each column, or empty

    def __str__(self) -> str:
        width, note = max(map(len, ["column", *self.names])), list[str]()
        lines = [self.title, f"{'column':<{width}}  {'coef':>11}  {self.level:>11.4g} interval"]
        lines[-1] = f"{lines[-1]:<{width + 40}}{self.heading}".rstrip()
        for name, coef, low, high, mark in zip(
            self.names, self.coef, *self.limits, self.marks, strict=True
        ):
            limits = f"{low:>11.4g} .. {high:<11.4g}"
            if not np.isfinite([low, high]).all():
                limits, note = f"{'-':>11}{'':15}", [_NONE]
            lines.append(f"{name:<{width}}  {coef:>11.4g}  {limits}{mark}".rstrip())
        return "\n".join([*lines, *note])
