"""MOLAR's gain over other estimators: the structure of Section 4.1, in the small.

The bounds leave three trials room for chance; what was measured stands beside each.
``tests/evidence/molar.py`` measures the same in the paper's size.
"""

import numpy as np
import pytest

from engram.tables.studies.regression_trials import METHODS
from tests.evidence.molar import LOGISTIC, Simulation, compare
from tests.samples import entry

SMALL = Simulation("linear", dim=60, tasks=30, size=1000, differing=4)


def ratios(setting, methods=tuple(METHODS)):
    """Each method's mean error over that of each task's own estimate."""
    found = compare(setting, methods, trials=3)
    return {name: each.mean() / found["ols"].mean() for name, each in found.items()}


def test_errors_beside_those_of_least_squares():
    sparse = ratios(SMALL)
    for method, least, most in [
        ("molar", 0.25, 0.36),  # 0.312
        ("molar-soft", 0.35, 0.46),  # 0.406
        ("lasso", 0.98, 1.03),  # 1.007: no parameter is sparse
        ("pool", 5.0, np.inf),  # 6.4
        ("rm", 0.47, 0.60),  # 0.535
        ("ml", 0.46, 0.59),  # 0.524
    ]:
        with entry(method, least, most):
            assert least <= sparse[method] <= most
    # Thresholding beats debiasing by the LASSO.
    assert sparse["molar"] <= 0.68 * sparse["rm"]  # 0.584
    assert sparse["molar"] <= 0.70 * sparse["ml"]  # 0.597


def test_tasks_that_are_alike_are_learned_at_the_rate_of_pooling():
    found = ratios(SMALL._replace(differing=0), ("ols", "pool", "molar"))
    assert found["pool"] == pytest.approx(30**-0.5, rel=0.15)  # 0.188, of 0.183
    # A median of Gaussians has (pi / 2)^0.5 = 1.25 times the error of their mean.
    assert found["molar"] <= 1.45 * found["pool"]  # 1.24


def test_where_everything_differs_little_is_lost_and_more_tasks_help():
    found = ratios(SMALL._replace(differing=SMALL.dim), ("ols", "pool", "molar"))
    assert found["molar"] <= 1.2  # 1.09
    assert found["pool"] > 20  # 39
    few = ratios(SMALL._replace(tasks=8), ("ols", "molar"))
    assert 0.55 <= few["molar"] <= 0.75  # 0.649


def test_errors_grow_linearly_with_the_dimension():
    # Figure 3: s / d, n and M are fixed, so the error of a coefficient is too.
    small, large = (
        compare(SMALL._replace(dim=d, differing=d // 10), ("molar",), trials=3)["molar"].mean()
        for d in (40, 80)
    )
    assert large / small == pytest.approx(2, rel=0.2)


def test_classifiers_gain_as_much():
    found = ratios(LOGISTIC, ("ols", "pool", "molar"))
    assert found["molar"] <= 0.45  # 0.389
    assert found["pool"] > found["molar"]
