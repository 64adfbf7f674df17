"""Tables with a task column: split into the tasks' rows, and checked."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import qr, solve_triangular

from engram.core.arrays import Array, Ints
from engram.tables.families import FAMILIES, FamilyName
from engram.tables.site import Rows

_NIL: Final = 1e-8  # relative length of what is left of a column beside the others
_PART: Final = 1e-5  # least share, in standard deviations, by which a column takes part in another
Labels = npt.NDArray[Any]


class Scaling(NamedTuple):
    """The standardization of columns, (x - center) / scale, both of shape (d,).

    Of a last column of ones, the center is 0 and the scale 1. An infinite scale drops a column.
    """

    center: Array
    scale: Array

    @classmethod
    def of(cls, x: Array, weights: Array | None) -> "Scaling":
        """Returns mean and standard deviation over all rows; scale 1 for constant columns.

        They are those of the values that are not NaN.
        """
        if (gone := np.isnan(x)).any():
            known = ~gone if weights is None else weights[:, None] * ~gone
            x, weights = np.where(gone, 0.0, x), known
        center = np.average(x, axis=0, weights=weights)
        scale = np.sqrt(np.average((x - center) ** 2, axis=0, weights=weights))
        return cls(center, np.where(scale > 0, scale, 1.0))

    def apply(self, x: Array) -> Array:
        """Returns the standardized columns."""
        return (x - self.center) / self.scale

    def of_rows(self, rows: Rows) -> Rows:
        """Returns rows with standardized columns, by the last one if that is of (weighted) ones."""
        return rows._replace(x=(rows.x - rows.x[:, -1:] * self.center) / self.scale)

    def unscaled(self, coefs: Array) -> Array:
        """Returns coefficients, shape (..., d), of columns in their own units."""
        full = coefs / self.scale + 0.0  # dropped columns have 0, and not -0
        full[..., -1] -= full @ self.center  # 0 without an intercept
        return full


def take_tasks(
    x: Any, task: Any, *, fitting: bool = False, what: str = "task"
) -> tuple[Any, Labels]:
    """Returns the features without the task column, and each row's task.

    Args:
        x: Features: an array, or a pandas frame.
        task: Each row's task, of length n; or the name of a column of the frame.
        fitting: Whether to refuse unused categories of a pandas categorical.
        what: What the labels are, for messages.

    Raises:
        ValueError: If it is missing, does not have one label for each row, or has empty labels.
    """
    if task is None:
        raise ValueError(f"{what} must be given: one label a row, or the name of a frame's column")
    if isinstance(task, str):
        if not hasattr(x, "columns") or task not in x.columns:
            raise ValueError(f"{what} {task!r} is not a column of X")
        x, task = x.drop(columns=[task]), x[task]
    categories = getattr(getattr(task, "cat", task), "categories", None)
    labels = np.asarray(task if hasattr(task, "dtype") else _listed(task))
    if labels.ndim != 1:
        raise ValueError(f"{what} must have one label a row, got shape {labels.shape}")
    if hasattr(task, "isna"):
        empty = np.asarray(task.isna())
    else:
        each = labels.tolist()
        empty = np.array([v is None or (isinstance(v, float) and np.isnan(v)) for v in each])
    if empty.any():
        raise ValueError(f"{what} must not be empty, as it is in row {int(np.argmax(empty))}")
    if fitting and categories is not None:
        unused = [name for name in categories if name not in set(labels.tolist())]
        if unused:
            raise ValueError(f"task {unused[0]!r} has no rows: remove it from the categories")
    return x, labels


def _listed(task: Any) -> Labels:
    """Converts a list of labels; numpy alone would turn numbers among names into names."""
    labels = np.asarray(task)
    kinds = {isinstance(label, str) for label in task} if labels.ndim == 1 else set()
    return labels if len(kinds) < 2 else np.asarray(task, dtype=object)


def distinct(labels: Labels) -> tuple[Labels, Ints]:
    """Returns the sorted tasks, and the position of each row's task among them.

    Raises:
        ValueError: If labels are of different kinds, such as numbers and names.
    """
    try:
        tasks, codes = np.unique(labels, return_inverse=True)
    except TypeError as error:
        kinds = sorted({type(label).__name__ for label in labels.tolist()})
        raise ValueError(f"task must have labels of one kind, got {', '.join(kinds)}") from error
    return tasks, codes.reshape(-1)


def check_finite(x: Array, labels: Labels, names: Sequence[str]) -> None:
    """Checks that features are finite, and that each row has a task.

    Raises:
        ValueError: If not; it names the first bad value's column, task and row.
    """
    if len(labels) != len(x):
        raise ValueError(f"task must have {len(x)} labels, one a row, got {len(labels)}")
    bad = ~np.isfinite(x)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        what = "NaN" if np.isnan(x[row, column]) else "infinity"
        raise ValueError(
            f"task {shown(labels[row])}: column {names[column]} has {what} in row {row}; "
            f"{int(bad.any(axis=1).sum())} rows in all have NaN or infinity"
        )


def check_target(y: Array, labels: Labels, family: FamilyName) -> None:
    """Checks that targets are in a family's range.

    Raises:
        ValueError: If not; it names the first bad value's task and row.
    """
    model = FAMILIES[family]
    bad = ~(np.isfinite(y) & model.valid(y))
    if bad.any():
        row = int(np.argmax(bad))
        task, found = shown(labels[row]), "NaN" if np.isnan(y[row]) else y[row]
        raise ValueError(f"task {task}: y must be {model.target}, got {found} in row {row}")


def rows_of_tasks(
    x: Array, y: Array, weights: Array | None, codes: Ints, tasks: Labels
) -> list[Rows]:
    """Splits a table into the tasks' rows; ``codes`` are positions in ``tasks``.

    Raises:
        ValueError: If a weight is negative or not finite, or all of a task's weights are 0.
    """
    check_weights(weights)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(tasks)))[:-1]
    parts = []
    for task, own in zip(tasks, np.split(order, ends), strict=True):
        counts = None if weights is None else weights[own]
        if counts is not None and not counts.any():
            raise ValueError(f"task {shown(task)} has no rows: all its weights are 0")
        parts.append(Rows(x[own], y[own], counts))
    return parts


def check_weights(weights: Array | None) -> None:
    """Checks that weights of rows are finite and at least 0.

    Raises:
        ValueError: If not; it names the first bad one's row.
    """
    if weights is not None and (bad := ~(np.isfinite(weights) & (weights >= 0))).any():
        row = int(np.argmax(bad))
        expected = "sample_weight must be finite and at least 0"
        raise ValueError(f"{expected}, got {weights[row]} in row {row}")


def codes_of(labels: Labels, tasks: Labels, *, unseen: str) -> Ints:
    """Returns the position of each row's task in ``tasks``; -1 for unknown tasks.

    Raises:
        ValueError: If there are unknown tasks and ``unseen`` is not "shared".
    """
    known: Mapping[Any, int] = {task: i for i, task in enumerate(tasks.tolist())}
    codes = np.array([known.get(label, -1) for label in labels.tolist()], dtype=np.intp)
    if (codes < 0).any() and unseen != "shared":
        label = labels[int(np.argmax(codes < 0))]
        raise ValueError(
            f"task {shown(label)} was not seen in fit; with unseen='shared' it is predicted by "
            "the shared parameter"
        )
    return codes


def shown(label: Any) -> str:
    """Returns the ``repr`` of a label, or of a value of a column."""
    return repr(label.item() if isinstance(label, np.generic) else label)


class Dependent(NamedTuple):
    """A column that adds nothing to the others."""

    column: int
    others: list[int]  # the columns of which it is a combination, within tasks; empty: constant

    def in_words(self, names: Sequence[str]) -> str:
        """Returns the column's name, and those it depends on."""
        if not self.others:
            return f"{names[self.column]} (constant in every task)"
        return f"{names[self.column]} (given by {', '.join(names[k] for k in self.others)})"


def dependent_columns(tasks: Sequence[Rows], *, intercept: bool = True) -> list[Dependent]:
    """Finds columns that the others span, so that those left are independent.

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
