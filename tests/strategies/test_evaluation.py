"""The figures of an evaluation, by hand."""

import numpy as np
import pytest

from engram.scoring.evaluation import Evaluation, summary
from engram.scoring.metrics import METRICS, Metric
from engram.scoring.tasks import CLASSIFICATION

NAN, INF = float("nan"), float("inf")
ERROR = Metric("error", lambda outputs, targets: 0.0, low=0, better="lower")
EVALUATION = Evaluation(
    clients=[0, 1, 4],
    columns={
        "accuracy": np.array([0.5, 1.0, 0.9]),
        "accuracy-common": np.array([0.1, 0.2, 0.6]),
        "accuracy-tuned": np.array([0.7, NAN, 0.9]),
        "loss": np.array([0.5, INF, 1.0]),
        "loss-common": np.array([2.0, 3.0, 4.0]),
        "loss-tuned": np.array([1.0, NAN, 3.0]),
        "error": np.array([NAN, 1.0, 3.0]),
        "error-common": np.array([NAN, NAN, NAN]),
        "error-tuned": np.array([NAN, NAN, NAN]),
        "queries": np.array([25.0, 10.0, 10.0]),
    },
)


def test_summary():
    found = summary(EVALUATION, [METRICS["accuracy"], ERROR, CLASSIFICATION.metric])
    assert found["accuracy"] == pytest.approx(0.8)
    assert found["accuracy-std"] == pytest.approx((0.14 / 3) ** 0.5)  # .3^2 + .2^2 + .1^2 = .14
    assert found["accuracy-median"] == 0.9
    assert found["accuracy-p10"] == pytest.approx(0.58)  # a fifth of the way from 0.5 to 0.9
    assert found["accuracy-common"] == pytest.approx(0.3)
    assert found["accuracy-tuned"] == pytest.approx(0.8)
    assert (found["loss-common"], found["loss"], found["scored"]) == (3.0, None, 3)
    # Lower is better: the worst tenth is the highest. Who has no value is left out.
    assert (found["error"], found["error-p90"], found["error-common"]) == (2.0, 2.8, None)


def test_each_clients_scores():
    found = EVALUATION.listed("queries")
    assert found["accuracy-tuned"] == [0.7, None, 0.9]
    assert found["loss"] == [0.5, None, 1.0]
    assert found["ids"] == [0, 1, 4]
    assert found["queries"] == [25, 10, 10]


def test_scores_by_client_become_columns():
    assert Evaluation.of({3: {"a": 1.0}, 0: {"a": 2.0}}).clients == [0, 3]
    np.testing.assert_array_equal(Evaluation.of({3: {"a": 1}, 0: {"a": 2}}).columns["a"], [2, 1])
