"""The base of estimators for streams; ``engram.online.mixture`` has the algorithm."""

import struct
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, Self, SupportsFloat

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from engram.core.arrays import Array, unmasked
from engram.core.checks import require
from engram.core.process_modes import own_modes
from engram.online import linear, mixture
from engram.online.compiled_updates import within
from engram.online.learner import positive
from engram.online.losses import LinearTask, Loss


class _Rules(Protocol):
    """The modules ``mixture`` and ``linear``, which document these functions."""

    def full_matrix(self, task: LinearTask, dim: int) -> bool: ...

    def started(self, task: LinearTask, dim: int) -> Any: ...

    def coefficients(self, task: LinearTask, model: Any) -> Array: ...

    def predictions(self, task: LinearTask, model: Any, x: Array) -> Array: ...

    def learned(
        self, task: LinearTask, model: Any, x: Array, y: Array, weights: Array, *, in_place: bool
    ) -> Any: ...

    def widened(self, task: LinearTask, model: Any, dim: int) -> Any: ...


LARGEST = 1e90  # of numbers and weights: a weight times a square, and sums of them, are finite
_BY_NAME = "a row by name, such as a dict"
_PLAIN = (float, int, str, np.generic)  # numbers and labels
_ONE = np.ones(1)
_RULES: Mapping[str, _Rules] = {"mixture": mixture, "universal": linear}


class _Reader:
    """Reads rows with the same names in the same order, without a lookup for each name.

    A row has ``width`` numbers, those after the named ones 0.
    """

    def __init__(self, names: npt.NDArray[Any], width: int) -> None:
        self.names, self.width = names, width
        self._order = names.tolist()
        self._pack = struct.Struct(f"{len(names)}d").pack_into  # in two thirds of numpy's time

    def read(self, x: Mapping[Any, Any], largest: float) -> Array | None:
        """Returns a row, shape (1, width).

        None if it does not have these names in this order, or values that are not numbers from
        ``-largest`` to ``largest``.
        """
        order = list(x)
        if order != self._order:
            return None
        self._order = order  # the next row likely has the same objects, and ``!=`` is then fast
        rows = np.zeros((1, self.width))
        try:
            self._pack(rows.data, 0, *x.values())
        except (struct.error, TypeError, ValueError, OverflowError):
            return None
        return rows if within(rows, largest) else None


@dataclass(kw_only=True, eq=False, repr=False)
class StreamModel(BaseEstimator):
    """Base of linear models that learn a stream, row by row.

    Parameters are read at the first row; later changes take effect at the next ``fit``. Invalid
    input raises ``ValueError`` and leaves the model unchanged.

    Attributes:
        learner_: The learner.
        task_: The learning task.
        model_: State of the model, which ``learn_one`` changes in place.
        n_features_in_, feature_names_in_: As in scikit-learn; ``learn_one`` extends them.
    """

    radius: float = 3.0
    full_matrix: bool | None = None
    learner: Literal["mixture", "universal"] = "mixture"

    @abstractmethod
    def _loss(self) -> Loss: ...

    @abstractmethod
    def _shape(self) -> tuple[int, bool]:
        """Returns the number m of outputs, and whether targets are standardized."""

    @abstractmethod
    def _targets(self, y: npt.NDArray[Any], classes: Any) -> Array:
        """Returns targets, shape (n, m); before the first row it also determines the classes."""

    @property
    def full_matrix_(self) -> bool:
        """Whether learners keep matrices of columns, which take O(d^2) per row."""
        return self._rules.full_matrix(self.task_, self._width)

    @property
    def _rules(self) -> _Rules:
        return _RULES[self.learner_]

    @property
    def _width(self) -> int:
        """Number of the model's columns; with columns by name, some may have no name yet."""
        return len(self.model_.columns.mean)

    def _start(self, dim: int) -> None:
        positive(radius=self.radius)
        require(self.learner in _RULES, "learner", self.learner, " or ".join(_RULES))
        known = self.full_matrix is None or isinstance(self.full_matrix, bool)
        require(known, "full_matrix", self.full_matrix, "True, False or None")
        outputs, standardized = self._shape()
        self.learner_ = self.learner
        self.task_ = LinearTask(
            self._loss(), outputs, standardized, float(self.radius), self.full_matrix
        )
        self.model_ = self._rules.started(self.task_, dim)
        self._warn(dim, stacklevel=6)

    def _warn(self, width: int, *, stacklevel: int) -> None:
        if self.task_.full_matrix is None and not self._rules.full_matrix(self.task_, width):
            warnings.warn(
                "with so many columns, learners keep no d x d matrices, for speed; "
                "full_matrix=True keeps them, and False leaves them out without a word",
                stacklevel=stacklevel,
            )

    # --- Tables ------------------------------------------------------------------------------

    def _learn_table(self, after: Self, x: Any, y: Any, weights: Any, classes: Any = None) -> Self:
        """Has a copy learn rows, and takes over its state: a refusal changes nothing."""
        with own_modes():
            after._take_table(x, y, weights, classes)
        for name in vars(self).keys() - vars(after).keys():
            if name.endswith("_"):  # scikit-learn has others while it fits
                delattr(self, name)
        self.__dict__.update(vars(after))
        return self

    def _take_table(self, x: Any, y: Any, weights: Any, classes: Any) -> None:
        first = not hasattr(self, "model_")
        if y is None:
            raise ValueError("y should be a 1d array, got None")
        x = self._table(x, reset=first)
        y = column_or_1d(unmasked(y), warn=True)
        check_consistent_length(x, y)
        weights = _check_sample_weight(weights, x, dtype=np.float64)
        bad = ~((weights >= 0) & (weights <= LARGEST))
        if bad.any():
            raise ValueError(f"sample_weight must be finite and at least 0, got {weights[bad][0]}")
        targets = self._targets(y, classes)
        if first:
            self._start(x.shape[1])
        x, counts = _padded(x, self._width), weights > 0
        if not counts.all():
            x, targets, weights = x[counts], targets[counts], weights[counts]
        self.model_ = self._rules.learned(
            self.task_, self.model_, x, targets, weights, in_place=False
        )

    def _table(self, x: Any, *, reset: bool) -> Array:
        check = partial(validate_data, dtype=np.float64, ensure_all_finite=False)
        table: Array = check(self, unmasked(x), reset=reset)
        names = getattr(self, "feature_names_in_", None)
        _check_rows(table, [f"x{i}" for i in range(table.shape[1])] if names is None else names)
        return table

    @own_modes()
    def _predictions(self, x: Any) -> Array:
        check_is_fitted(self)
        x = _padded(self._table(x, reset=False), self._width)
        return self._rules.predictions(self.task_, self.model_, x)

    def _coefficients(self) -> tuple[Array, Array]:
        """Returns coefficients of columns in their own units, (m, d), and intercepts, (m,)."""
        check_is_fitted(self)
        columns, targets = self.model_.columns, self.model_.targets
        w = self._rules.coefficients(self.task_, self.model_) * targets.scale[:, None]
        coef = w[:, :-1] / columns.scale
        intercept = targets.mean + w[:, -1] - coef @ columns.mean
        return coef[:, : self.n_features_in_], intercept

    # --- Rows by name ------------------------------------------------------------------------

    _unshared = False  # whether the state's arrays are of this object alone, and may be changed

    def __getstate__(self) -> dict[str, Any]:
        """Returns the pickled state; arrays are shared, and copied on the next update."""
        self.__dict__.pop("_unshared", None)
        self.__dict__.pop("_reader", None)
        state: dict[str, Any] = super().__getstate__()
        return state

    def _learn_one(self, x: Mapping[Any, Any], y: Any, w: float, classes: Any = None) -> Self:
        if hasattr(self, "model_"):
            self._take_row(x, y, w, classes)
            return self
        after = copy(self)  # the first row may be refused late, by a parameter
        after._take_row(x, y, w, classes)
        self.__dict__.update(vars(after))
        return self

    def _take_row(self, x: Mapping[Any, Any], y: Any, w: float, classes: Any) -> None:
        """Learns a row; refusals come before any change."""
        if not (w == 1 and isinstance(x, dict) and isinstance(y, _PLAIN)):
            _check_row(x, y, w)  # which takes a while
        rows = self._read(x)
        names: list[Any] | None = None  # if they are to be looked at
        if rows is None:
            names = self._names()
            known = set(names)
            names += [name for name in x if name not in known]
            rows = _row(x, names)
        targets = self._target(y, classes)
        if names is not None:
            if not hasattr(self, "model_"):
                self._start(len(names))
            elif len(names) > self._width:
                # Twice as many, or each new name would make the learner widen its state.
                width = max(len(names), 2 * self._width)
                if self.full_matrix_:
                    self._warn(width, stacklevel=5)
                self.model_ = self._rules.widened(self.task_, self.model_, width)
            if len(names) > len(getattr(self, "feature_names_in_", ())):
                self.n_features_in_ = len(names)
                self.feature_names_in_ = np.fromiter(names, dtype=object, count=len(names))
            rows = _padded(rows, self._width)
        if w > 0:
            weights = _ONE if w == 1 else np.array([w], dtype=np.float64)
            self.model_ = self._rules.learned(
                self.task_, self.model_, rows, targets, weights, in_place=self._unshared
            )
            self._unshared = True

    def _target(self, y: Any, classes: Any) -> Array:
        return self._targets(np.array([y]), classes)

    def _names(self) -> list[Any]:
        names = getattr(self, "feature_names_in_", None)
        if names is None and hasattr(self, "model_"):
            begin = "begin with learn_one or with a frame, not with an array"
            raise ValueError(f"rows by name need names of columns: {begin}")
        return [] if names is None else names.tolist()

    def _read(self, x: Mapping[Any, Any]) -> Array | None:
        """Returns a row by name, (1, d), if its names and values are as usual."""
        names = getattr(self, "feature_names_in_", None)
        if names is None:  # as before the first row
            return None
        reader: _Reader | None = vars(self).get("_reader")  # of the last rows by name
        width = self._width
        if reader is None or reader.names is not names or reader.width != width:
            self._reader = reader = _Reader(names, width)
        return reader.read(x, LARGEST)

    def _predictions_one(self, x: Mapping[Any, Any]) -> Array:
        require(isinstance(x, Mapping), "x", type(x).__name__, _BY_NAME)
        rows = self._read(x)
        if rows is None:
            rows = _padded(_row(x, self._names()), self._width)
        found: Array = self._rules.predictions(self.task_, self.model_, rows)[0]
        return found


def _check_row(x: Any, y: Any, w: Any) -> None:
    require(isinstance(x, Mapping), "x", type(x).__name__, _BY_NAME)
    weighs = isinstance(w, (int, float, np.number)) and 0 <= w <= LARGEST
    require(bool(weighs), "w", w, "finite and at least 0")
    require(isinstance(y, str) or np.ndim(y) == 0, "y", y, "one number or label")


def _padded(x: Array, width: int) -> Array:
    if x.shape[1] == width:
        return x
    rows = np.zeros((len(x), width))
    rows[:, : x.shape[1]] = x
    return rows


def _row(x: Mapping[Any, Any], names: Sequence[Any]) -> Array:
    values = [x.get(name, 0.0) for name in names]
    for name, value in zip(names, values, strict=True):
        if not (value is None or isinstance(value, SupportsFloat)):
            raise ValueError(f"column {name!r} must be a number, got {value!r}")
    rows = np.array([values], dtype=np.float64)
    _check_rows(rows, names)
    return rows


def _check_rows(x: Array, names: Sequence[Any]) -> None:
    good = np.abs(x) <= LARGEST
    if not good.all():
        row, column = (int(i) for i in np.argwhere(~good)[0])
        value = x[row, column]
        shown = "NaN" if np.isnan(value) else "infinity" if np.isinf(value) else value
        where = f" in row {row}" if len(x) > 1 else ""
        limit = f"finite, and at most {LARGEST:g}"
        raise ValueError(f"column {names[column]!s} must be {limit}, got {shown}{where}")
