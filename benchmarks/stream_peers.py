"""Learners of streams, ours and others', as functions that predict a row and then learn it.

River and Vowpal Wabbit come with ``pip install engram[bench]``.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple

import numpy as np
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.preprocessing import StandardScaler

from engram.core.arrays import Array
from engram.online.estimators import OnlineClassifier, OnlineRegressor

Play = Callable[[Any, float], float]
"""``(row, target) -> prediction`` made before the target is learned; for labels 0 and 1 that of 1.

Rows are in the learner's own format.
"""


class Peer(NamedTuple):
    """A learner.

    Attributes:
        rows: ``x -> rows``, in its own format, from a table.
        start: ``(labels, step) -> play``: for labels rather than numbers, with a step size, None
            for its defaults.
        steps: Step sizes among which it is tuned; none if it has no step size.
        package: What must be installed for it, beside what Engram needs.
    """

    rows: Callable[[Array], Sequence[Any]]
    start: Callable[[bool, float | None], Play]
    steps: tuple[float, ...] = ()
    package: str = ""


def named(x: Array) -> list[dict[str, float]]:
    """Returns rows by name."""
    names = [f"x{i}" for i in range(x.shape[1])]
    return [dict(zip(names, row, strict=True)) for row in x.tolist()]


def _texts(x: Array) -> list[str]:
    """Returns rows as Vowpal Wabbit reads them, without their targets."""
    return ["| " + " ".join(f"{i}:{v:.9g}" for i, v in enumerate(row)) for row in x.tolist()]


def _ours(labels: bool, step: float | None, **options: Any) -> Play:
    del step
    if not labels:
        regressor = OnlineRegressor(**options)
        return lambda row, y: (regressor.predict_one(row), regressor.learn_one(row, y))[0]
    classifier = OnlineClassifier(**options)

    def play(row: Any, y: float) -> float:
        p = classifier.predict_proba_one(row).get(True, 0.5)
        classifier.learn_one(row, y > 0)
        return float(p)

    return play


def _river(labels: bool, step: float | None) -> Play:
    models, sgd = import_module("river.linear_model"), import_module("river.optim").SGD
    kind = models.LogisticRegression if labels else models.LinearRegression
    rule = {} if step is None else {"optimizer": sgd(step), "intercept_lr": step}
    model = import_module("river.preprocessing").StandardScaler() | kind(**rule)

    def play(row: Any, y: float) -> float:
        p = model.predict_proba_one(row).get(True, 0.5) if labels else model.predict_one(row)
        model.learn_one(row, y > 0 if labels else y)
        return float(p)

    return play


def _vowpal(labels: bool, step: float | None, options: str = "") -> Play:
    kind = "--loss_function logistic --link logistic" if labels else "--loss_function squared"
    rate = "" if step is None else f" --learning_rate {step}"
    model = import_module("vowpalwabbit").Workspace(f"--quiet {kind}{rate} {options}")

    def play(row: str, y: float) -> float:
        example = model.example(f"{2 * y - 1 if labels else y:.9g} {row}")
        model.learn(example)  # predicts first
        p = example.get_simplelabel_prediction()
        model.finish_example(example)
        return float(p)

    return play


def _sklearn(labels: bool, step: float | None) -> Play:
    rule = {} if step is None else {"learning_rate": "constant", "eta0": step, "alpha": 0.0}
    model = SGDClassifier(loss="log_loss", **rule) if labels else SGDRegressor(**rule)
    scaler, first = StandardScaler(), True

    def play(row: Array, y: float) -> float:
        nonlocal first
        scaler.partial_fit(row)
        z, p = scaler.transform(row), 0.5 if labels else 0.0
        if not first:
            p = model.predict_proba(z)[0, 1] if labels else model.predict(z)[0]
        if labels:
            model.partial_fit(z, [y], classes=[0.0, 1.0])
        else:
            model.partial_fit(z, [y])
        first = False
        return float(p)

    return play


def _constant(labels: bool, step: float | None) -> Play:
    """The mean of all targets so far."""
    del step
    total, count = (0.5, 1.0) if labels else (0.0, 1e-9)

    def play(row: Any, y: float) -> float:
        nonlocal total, count
        del row
        p = total / count
        total, count = total + y, count + 1
        return p

    return play


def _last(labels: bool, step: float | None) -> Play:
    """The last target again; a label as often as it has been so before."""
    del step
    last, same, count = 0.0, 0.5, 1.0

    def play(row: Any, y: float) -> float:
        nonlocal last, same, count
        del row
        repeats = same / count
        p = (repeats if last > 0 else 1 - repeats) if labels else last
        same, count, last = same + (y == last), count + 1, y
        return p

    return play


def _singles(x: Array) -> list[Array]:
    return list(x[:, None])


OURS: Final[dict[str, dict[str, Any]]] = {
    "mixture": {},
    "mixture, diagonal": {"full_matrix": False},
    "universal": {"learner": "universal"},
}
"""Options of our estimators; the first are the defaults."""

PEERS: Final = {
    "mean of all targets so far": Peer(_singles, _constant),
    "last target": Peer(_singles, _last),
    **{name: Peer(named, partial(_ours, **options)) for name, options in OURS.items()},
    "river": Peer(named, _river, (0.001, 0.01, 0.1, 1.0, 3.0), "river"),
    "Vowpal Wabbit": Peer(_texts, _vowpal, (0.01, 0.05, 0.5, 2.0, 10.0), "vowpalwabbit"),
    "Vowpal Wabbit --coin": Peer(
        _texts, partial(_vowpal, options="--coin"), package="vowpalwabbit"
    ),
    "scikit-learn": Peer(_singles, _sklearn, (0.001, 0.01, 0.1, 1.0, 3.0)),
}


def finite(p: float) -> float:
    """Returns a prediction, 0 for one that is not finite."""
    return p if np.isfinite(p) else 0.0
