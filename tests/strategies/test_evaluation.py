"""The figures of an evaluation, by hand."""

import numpy as np
import pytest

from strategies.evaluation import Evaluation, client_columns, summary

NAN = float("nan")
EVALUATION = Evaluation(
    clients=[0, 1, 4],
    before=np.array([0.1, 0.2, 0.6]),
    personalized=np.array([0.5, 1.0, 0.9]),
    own=np.array([0.7, NAN, 0.9]),
    loss_before=np.array([2.0, 3.0, 4.0]),
    loss_personalized=np.array([0.5, NAN, 1.0]),
    queries=np.array([25.0, 10.0, 10.0]),
)


def test_summary():
    found = summary(EVALUATION)
    assert found["accuracy"] == pytest.approx(0.8)
    assert found["accuracy-std"] == pytest.approx((0.14 / 3) ** 0.5)  # .3^2 + .2^2 + .1^2 = .14
    assert found["accuracy-median"] == 0.9
    assert found["accuracy-p10"] == pytest.approx(0.58)  # a fifth of the way from 0.5 to 0.9
    assert found["accuracy-before"] == pytest.approx(0.3)
    assert (found["accuracy-own"], found["own-clients"]) == (pytest.approx(0.8), 2)
    assert (found["loss-before"], found["loss"], found["scored"]) == (3.0, None, 3)


def test_each_clients_scores():
    found = client_columns(EVALUATION)
    assert found["own"] == [0.7, None, 0.9]
    assert found["ids"] == [0, 1, 4]
    assert found["queries"] == [25, 10, 10]
