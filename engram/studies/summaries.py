"""Shared parts of studies' summaries: groups of rows, and means with standard errors."""

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from engram.core.arrays import Array
from engram.simulations.job_pool import Row


def grouped(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Groups rows by the values of some keys, in the order of first appearance.

    A value that is a dictionary counts as the tuple of its items.
    """
    found: dict[tuple[Hashable, ...], list[Row]] = {}
    for row in rows:
        values = (row[key] for key in keys)
        of = tuple(tuple(value.items()) if isinstance(value, dict) else value for value in values)
        found.setdefault(of, []).append(row)
    return found


def mean_and_error(values: Array, errors: float = 1.0) -> tuple[Array, Array | None]:
    """Returns the mean over the first axis, and a multiple of its standard error.

    Both have shape (...) for ``values`` of shape (r, ...); there is no error if r = 1. A multiple
    of 1.96 gives half the width of a 95 % interval.
    """
    mean = np.asarray(values.mean(axis=0))
    if len(values) == 1:
        return mean, None
    return mean, np.asarray(errors * values.std(axis=0, ddof=1) / np.sqrt(len(values)))
