"""Rows to be learned in their order, and who learns them."""

import numpy as np

from engram.online.estimators import OnlineClassifier, OnlineRegressor
from engram.online.state_arrays import to_arrays

NAMES = ["age", "income", "height"]
BETA = np.array([0.5, -2e-4, 30.0])


def rows(n=1500, seed=0):
    """Columns of scales 10, 10,000 and 0.1, far from 0; an intercept of 7; noise of 1."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)) * [10, 1e4, 0.1] + [40, 5e4, 1.7]
    return x, x @ BETA + 7 + rng.normal(size=n)


def labels(x, seed=1):
    """Log-odds of 3, -2 and 1 a standard deviation, and -1."""
    z = (x - [40, 5e4, 1.7]) / [10, 1e4, 0.1]
    odds = z @ [3.0, -2.0, 1.0] - 1
    drawn = np.random.default_rng(seed).random(len(x)) < 1 / (1 + np.exp(-odds))
    return np.where(drawn, "yes", "no")


def by_name(x, names=NAMES):
    return [dict(zip(names, row, strict=True)) for row in x.tolist()]


def same(one, other):
    """Whether two models are one, bit for bit."""
    a, b = to_arrays(one.model_), to_arrays(other.model_)
    return list(a) == list(b) and all(np.array_equal(a[k], b[k]) for k in a)


def standardized(model):
    """Coefficients for standardized columns and a column of ones, shape (outputs, d + 1)."""
    return model._rules.coefficients(model.task_, model.model_)


UNIVERSAL = {"learner": "universal"}
CLASSES = {"classes": ["no", "yes"]}
# Those of the universal ensemble, whose numbers are recorded.
ON_A_BALL = {
    "regressor": (OnlineRegressor(**UNIVERSAL), lambda x, y: y, {}),
    "median": (OnlineRegressor(loss="absolute", **UNIVERSAL), lambda x, y: y, {}),
    "classifier": (OnlineClassifier(radius=8.0, **UNIVERSAL), lambda x, y: labels(x), CLASSES),
    "hinge": (
        OnlineClassifier(loss="hinge", radius=8.0, **UNIVERSAL),
        lambda x, y: labels(x),
        CLASSES,
    ),
}
MODELS = {
    "mixture, regressor": (OnlineRegressor(), lambda x, y: y, {}),
    "mixture, median": (OnlineRegressor(loss="absolute"), lambda x, y: y, {}),
    "mixture, classifier": (OnlineClassifier(), lambda x, y: labels(x), CLASSES),
    "mixture, hinge": (OnlineClassifier(loss="hinge"), lambda x, y: labels(x), CLASSES),
    **ON_A_BALL,
}
