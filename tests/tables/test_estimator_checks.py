"""scikit-learn's own checks of estimators, which know of no tasks.

So all rows are one task's, which is fitted twice: two tasks that agree in everything. The shared
parameter is then the individual fit.
"""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import _num_samples

from engram.tables.regressor import MolarClassifier, MolarRegressor
from engram.tables.site import Rows

FEW_ROWS = "the check has fewer rows than columns, which is refused; see test_regressor.py"


class Twins:
    """A mixin: its tasks are all rows, and all rows again."""

    def fit(self, X, y, sample_weight=None):
        return super().fit(X, y, np.zeros(_num_samples(X)), sample_weight)

    def _estimate(self, rows):
        self.tasks_ = np.arange(2)
        return super()._estimate([self.blurred(rows[0])] * 2)

    def blurred(self, rows):
        return rows


class Regressor(Twins, MolarRegressor):
    def __init__(self, *, c=1.0, standardize=False, unseen="shared"):
        super().__init__(c=c, standardize=standardize, unseen=unseen)


class Classifier(Twins, MolarClassifier):
    """The checks' classes can be told apart with certainty; a likelihood needs some doubt."""

    def __init__(self, *, c=1.0, standardize=False, unseen="shared"):
        super().__init__(c=c, standardize=standardize, unseen=unseen)

    def blurred(self, rows):
        x, y, weights = rows.counted()
        if np.ptp(y) == 0:
            return rows
        counts = np.concatenate([weights, weights / 10])
        return Rows(np.vstack([x, x]), np.concatenate([y, 1 - y]), counts)


@pytest.mark.parametrize("estimator", [Regressor(standardize=True), Classifier()])
def test_scikit_learns_checks(estimator):
    failing = {"check_sample_weight_equivalence_on_dense_data": FEW_ROWS}
    check_estimator(estimator, expected_failed_checks=failing, on_skip=None)
