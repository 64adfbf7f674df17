"""Base of estimators for two classes, whatever fits their logistic regressions."""

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from engram.core.arrays import Array
from engram.tables.families import FamilyName
from engram.tables.model import MultitaskModel
from engram.tables.tables import shown


class TwoClasses(ClassifierMixin, MultitaskModel):
    """A base that stands before the one with ``_estimate``: labels, probabilities and scores.

    Attributes:
        classes_: The two classes, sorted; coefficients are those of the log-odds of the second.
    """

    @property
    def _family(self) -> FamilyName:
        return "logistic"

    def _checked(self, x: Any, y: Any, *, reset: bool) -> tuple[Array, Array]:
        if reset and y is not None:
            check_classification_targets(y)
            self.classes_ = np.unique(column_or_1d(y))
            if len(self.classes_) != 2:
                count = "1 class" if len(self.classes_) == 1 else f"{len(self.classes_)} classes"
                raise ValueError(
                    f"Only binary classification is supported: y must have 2 classes, got {count}"
                )
        return super()._checked(x, y, reset=reset)

    def _target(self, y: npt.NDArray[Any]) -> Array:
        strange = ~np.isin(y, self.classes_)
        if strange.any():
            raise ValueError(
                f"y must be one of {self.classes_.tolist()}, got {shown(y[strange][0])}"
            )
        return np.asarray(y == self.classes_[1], dtype=np.float64)

    def decision_function(self, X: Any, task: Any = None) -> Array:
        """Returns the log-odds of the second class, shape (n,). See ``linear_predictor``."""
        return self.linear_predictor(X, task)

    def predict_proba(self, X: Any, task: Any = None) -> Array:
        """Returns the probabilities of both classes, shape (n, 2). See ``linear_predictor``."""
        second: Array = super().predict(X, task)
        return np.stack([1 - second, second], axis=1)

    def predict(self, X: Any, task: Any = None) -> npt.NDArray[Any]:
        """Returns the likelier class of each row, shape (n,)."""
        second = self.linear_predictor(X, task) > 0
        likely: npt.NDArray[Any] = self.classes_[second.astype(int)]
        return likely

    def score(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> float:
        """Returns the accuracy: the share of rows classified correctly."""
        return float(accuracy_score(y, self.predict(X, task), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
