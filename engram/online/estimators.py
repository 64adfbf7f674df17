"""Linear models for streams: ``partial_fit`` for tables, ``learn_one`` for rows by name.

There is no step size to tune, columns may have any units, most of them may say nothing, and neither
the length of the stream nor a bound on gradients need be known.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from scipy.special import expit
from sklearn.base import ClassifierMixin, RegressorMixin, clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import _check_partial_fit_first_call, check_classification_targets
from sklearn.utils.validation import column_or_1d

from engram.core.arrays import Array, Ints
from engram.core.checks import require
from engram.online.losses import ABSOLUTE, HINGE, LOGISTIC, SQUARED, Loss, quantile
from engram.online.model import LARGEST, StreamModel


@dataclass(kw_only=True, eq=False, repr=False)
class OnlineRegressor(RegressorMixin, StreamModel):
    """Linear regression on a stream.

    Args:
        loss: ``squared``, for the mean; ``absolute``, for the median; or ``quantile``.
        quantile: The quantile to predict, in (0, 1), if ``loss`` is ``quantile``.
        radius: Size of the coefficients, in standard deviations of the target per standard
            deviation of a column: for ``mixture`` the root mean square of their Euclidean norm
            under the prior, which data outweigh; for ``universal`` an upper bound on it, which
            uncorrelated columns never need to be more than 1.
        full_matrix: Whether learners keep d x d matrices, which take O(d^2) per row, and which find
            correlations of columns. None: if they take little time: up to 127 columns
            (``universal``: 63). ``full_matrix_`` tells which was chosen.
        learner: ``mixture``, of bettors and Kalman filters (``engram.online.mixture``), or
            ``universal``, the ensemble of Yan, Zhao and Zhou (2023) on a ball
            (``engram.online.linear``), which is for few columns without outliers.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(2000, 2)) * [1e-3, 1e5] + [0, 7e5]
        >>> y = x @ [2000.0, -1e-5] + rng.normal(size=2000)
        >>> model = OnlineRegressor()
        >>> for start in range(0, 2000, 100):
        ...     model = model.partial_fit(x[start : start + 100], y[start : start + 100])
        >>> bool(np.allclose(model.coef_ / [2000, -1e-5], 1, atol=0.1))
        True
    """

    loss: Literal["squared", "absolute", "quantile"] = "squared"
    quantile: float = 0.5

    def _loss(self) -> Loss:
        losses = {"squared": SQUARED, "absolute": ABSOLUTE, "quantile": quantile(self.quantile)}
        require(self.loss in losses, "loss", self.loss, "squared, absolute or quantile")
        return losses[self.loss]

    def _shape(self) -> tuple[int, bool]:
        return 1, True

    def _targets(self, y: npt.NDArray[Any], classes: Any) -> Array:
        del classes
        try:
            targets = np.asarray(y, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"y must be numbers, got {y.tolist()[0]!r}") from error
        bad = ~(np.abs(targets) <= LARGEST)
        if bad.any():
            raise ValueError(f"y must be finite, and at most {LARGEST:g}, got {targets[bad][0]}")
        return targets[:, None]

    def _target(self, y: Any, classes: Any) -> Array:
        if isinstance(y, (int, float)) and abs(y) <= LARGEST:  # the usual case, as below
            return np.array([[y]], dtype=np.float64)
        return super()._target(y, classes)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Starts anew, and learns the rows once, in order; see ``partial_fit``."""
        return self._learn_table(clone(self), X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learns more rows, one after the other, as ``learn_one`` would.

        Args:
            X: Shape (n, d): an array, or a frame with column names.
            y: Numbers, shape (n,).
            sample_weight: Factor of each row's loss, at least 0, shape (n,).

        Raises:
            ValueError: If an argument is invalid or not finite, or the columns differ from earlier
                ones. The model is then unchanged.
        """
        return self._learn_table(copy(self), X, y, sample_weight)

    def learn_one(self, x: Mapping[Any, float], y: float, w: float = 1.0) -> Self:
        """Learns one row, given as numbers by name.

        Args:
            x: Numbers by name. A new name adds a column that was 0 in all earlier rows; a missing
                name counts as 0.
            y: The target.
            w: The row's weight.

        Raises:
            ValueError: For the reasons given in ``partial_fit``.
        """
        return self._learn_one(x, y, w)

    def predict(self, X: Any) -> Array:
        """Returns a prediction for each row, shape (n,)."""
        return self._predictions(X)[:, 0]

    def predict_one(self, x: Mapping[Any, float]) -> float:
        """Returns the prediction for a row given by name; 0 before the first row."""
        return float(self._predictions_one(x)[0]) if hasattr(self, "model_") else 0.0

    @property
    def coef_(self) -> Array:
        """Coefficients of the columns in their own units, shape (d,)."""
        return np.asarray(self._coefficients()[0][0])

    @property
    def intercept_(self) -> float:
        """The prediction where all columns are 0."""
        return float(self._coefficients()[1][0])


def _has_probabilities(model: "OnlineClassifier") -> bool:
    if model.loss != "logistic":
        raise AttributeError(f"probabilities need loss='logistic', got {model.loss!r}")
    return True


@dataclass(kw_only=True, eq=False, repr=False)
class OnlineClassifier(ClassifierMixin, StreamModel):
    """Linear classification on a stream, one class against the rest if there are more than two.

    Args:
        loss: ``logistic``, which gives probabilities, or ``hinge``.
        radius: Size of a class's coefficients, for columns of standard deviation 1; see
            ``OnlineRegressor``. The bound of ``universal`` is on the intercept, too; 8 is better
            there.
        full_matrix: See ``OnlineRegressor``; with m > 2 classes m d^2 counts, or m d.
        learner: See ``OnlineRegressor``.
    """

    loss: Literal["logistic", "hinge"] = "logistic"

    def _loss(self) -> Loss:
        losses = {"logistic": LOGISTIC, "hinge": HINGE}
        require(self.loss in losses, "loss", self.loss, "logistic or hinge")
        return losses[self.loss]

    def _shape(self) -> tuple[int, bool]:
        return (1 if len(self.classes_) == 2 else len(self.classes_)), False

    def _targets(self, y: npt.NDArray[Any], classes: Any) -> Array:
        check_classification_targets(y)
        _check_partial_fit_first_call(self, classes)
        if len(self.classes_) < 2:
            raise ValueError(f"classes must be at least 2, got 1 class: {self.classes_.tolist()}")
        is_class = y[:, None] == self.classes_
        strange = ~np.any(is_class, axis=1)
        if strange.any():
            got = y[strange].tolist()[0]
            raise ValueError(f"y must be one of {self.classes_.tolist()}, got {got!r}")
        targets = np.where(is_class, 1.0, -1.0)
        return targets[:, 1:] if len(self.classes_) == 2 else targets

    _by_label = (None, dict[Any, Array]())  # the classes, and each one's targets

    def _target(self, y: Any, classes: Any) -> Array:
        known = getattr(self, "classes_", None)
        if known is None or classes is not None:
            return super()._target(y, classes)
        if self._by_label[0] is not known:
            targets = self._targets(known, None)
            self._by_label = (known, dict(zip(known.tolist(), targets[:, None], strict=True)))
        try:  # the usual case, in a tenth of the time
            return self._by_label[1][y.item() if isinstance(y, np.generic) else y]
        except (KeyError, TypeError):  # to be refused, or an array of no dimensions
            return super()._target(y, classes)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Starts anew, and learns the rows once, in order; see ``partial_fit``."""
        classes = None if y is None else np.unique(column_or_1d(y, warn=True))
        return self._learn_table(clone(self), X, y, sample_weight, classes)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learns more rows as ``OnlineRegressor.partial_fit``, with labels y, shape (n,).

        ``classes`` are all labels that may occur; required at the first call.
        """
        return self._learn_table(copy(self), X, y, sample_weight, classes)

    def learn_one(
        self, x: Mapping[Any, float], y: Any, w: float = 1.0, classes: Any = None
    ) -> Self:
        """Learns one row by name as ``OnlineRegressor.learn_one``, with label y.

        ``classes`` are all labels that may occur; required at the first row unless labels are False
        and True.
        """
        if classes is None and not hasattr(self, "model_") and isinstance(y, (bool, np.bool_)):
            classes = [False, True]
        return self._learn_one(x, y, w, classes)

    def decision_function(self, X: Any) -> Array:
        """Returns the score of the second class, shape (n,); of several, (n, classes)."""
        scores = self._predictions(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Returns the likeliest class of each row, shape (n,)."""
        scores, classes = self._predictions(X), self.classes_  # which an unfitted one lacks
        return np.asarray(classes[_likeliest(scores)])

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> Array:
        """Returns probabilities, shape (n, classes).

        Several classes are learned separately, and their probabilities divided by the sum.
        """
        return _probabilities(self._predictions(X))

    def predict_one(self, x: Mapping[Any, float]) -> Any:
        """Returns the likeliest class of a row given by name; None before the first row."""
        if not hasattr(self, "model_"):
            return None
        return self.classes_[_likeliest(self._predictions_one(x)[None])[0]].item()

    @available_if(_has_probabilities)
    def predict_proba_one(self, x: Mapping[Any, float]) -> dict[Any, float]:
        """Returns probabilities by class; an empty dictionary before the first row."""
        if not hasattr(self, "model_"):
            return {}
        found = _probabilities(self._predictions_one(x)[None])[0]
        return dict(zip(self.classes_.tolist(), found.tolist(), strict=True))

    @property
    def coef_(self) -> Array:
        """Coefficients of columns in their own units: (1, d), or (classes, d)."""
        return self._coefficients()[0]

    @property
    def intercept_(self) -> Array:
        """Scores where all columns are 0: (1,), or (classes,)."""
        return self._coefficients()[1]


def _likeliest(scores: Array) -> Ints:
    return np.argmax(scores, axis=1) if scores.shape[1] > 1 else np.intp(1) * (scores[:, 0] > 0)


def _probabilities(scores: Array) -> Array:
    found: Array = expit(scores)
    if found.shape[1] == 1:
        return np.hstack([1 - found, found])
    return np.asarray(found / found.sum(axis=1, keepdims=True))
