"""Columns that the rows of all tasks together do not determine, found at once."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from scipy.linalg import qr, solve_triangular

from engram.tables.site import Rows

_NIL: Final = 1e-8  # relative length of what is left of a column beside the others
_PART: Final = 1e-5  # least share, in standard deviations, by which a column takes part in another


class Dependent(NamedTuple):
    """A column that adds nothing to the others."""

    column: int
    others: list[int]  # the columns of which it is a combination, within tasks; empty: constant

    def in_words(self, names: Sequence[str]) -> str:
        """Returns the column's name, with what it depends on."""
        if not self.others:
            return f"{names[self.column]} (constant in every task)"
        return f"{names[self.column]} (given by {', '.join(names[k] for k in self.others)})"


def dependent_columns(tasks: Sequence[Rows], *, intercept: bool = True) -> list[Dependent]:
    """Returns columns without which the others span the same space, and are independent.

    Each task has an intercept of its own, so columns are looked at within tasks: one that is
    constant in every task says nothing beside the intercepts. The columns are found by QR with
    pivoting.

    Args:
        tasks: Each task's rows.
        intercept: Whether each task has an intercept: its rows' last column, of ones.
    """
    parts, squares = [], []
    for rows in tasks:
        x, _, counts = rows.counted()
        x, ones = np.split(np.sqrt(counts)[:, None] * x, [x.shape[1] - intercept], axis=1)
        squares.append((x**2).sum(axis=0))
        # The residual of least squares: of ones, the mean is subtracted.
        parts.append(np.linalg.qr(x - ones @ (np.linalg.pinv(ones) @ x), mode="r"))
    x, size = np.vstack(parts), np.sqrt(np.sum(squares, axis=0))
    lengths = np.linalg.norm(x, axis=0)
    constant = lengths <= _NIL * size
    x = x / np.where(constant, 1.0, lengths)
    found = [Dependent(int(k), []) for k in np.flatnonzero(constant)]
    kept = np.flatnonzero(~constant)
    if not len(kept):
        return found
    triangle, pivots = qr(x[:, kept], mode="r", pivoting=True)
    rank = int((np.abs(np.diagonal(triangle)) > _NIL).sum())
    basis = kept[pivots[:rank]]
    parts_of = solve_triangular(triangle[:rank, :rank], triangle[:rank, rank:])
    for column, part in zip(kept[pivots[rank:]], parts_of.T, strict=True):
        found.append(Dependent(int(column), sorted(basis[np.abs(part) > _PART].tolist())))
    return sorted(found)
