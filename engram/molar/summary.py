"""A table of coefficients to print, or to make a frame of."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engram.molar.intervals import Intervals

__all__ = ["Summary"]


class Summary(NamedTuple):
    """Coefficients with intervals; ``print`` shows them as a table.

    Attributes:
        title: What they are.
        level: Of the intervals, in (0, 1).
        names: Of the columns.
        coef: Shape (d,).
        limits: Of the intervals.
        heading: Of the marks.
        marks: What is odd about each column; empty for nothing.
    """

    title: str
    level: float
    names: Sequence[str]
    coef: npt.NDArray[np.float64]
    limits: Intervals
    heading: str
    marks: Sequence[str]

    def __str__(self) -> str:
        width = max(map(len, ["column", *self.names]))
        lines = [self.title, f"{'column':<{width}}  {'coef':>11}  {self.level:>11.4g} interval"]
        lines[-1] = f"{lines[-1]:<{width + 40}}{self.heading}".rstrip()
        for name, coef, low, high, mark in zip(
            self.names, self.coef, *self.limits, self.marks, strict=True
        ):
            limits = f"{low:>11.4g} .. {high:<11.4g}"
            lines.append(f"{name:<{width}}  {coef:>11.4g}  {limits}{mark}".rstrip())
        return "\n".join(lines)
