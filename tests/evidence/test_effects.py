"""The simulation of missing values, in small, and its model of survival by hand."""

import numpy as np
import pytest

from tests.evidence.effects import coverage, cox, draw, nelson_aalen


def test_the_simulation_of_missing_values():
    sample = draw(np.random.default_rng(0), survival=True)
    assert sample.event.sum() == 40
    many = [draw(np.random.default_rng(i), survival=False) for i in range(200)]
    assert np.mean([one.y.sum() for one in many]) == pytest.approx(40, abs=1.5)
    missing = np.mean([one.missing for one in many], axis=(0, 1))
    assert missing == pytest.approx([0.3, 0.3, 0], abs=0.02)
    # Two rows at risk at the first event, one at the second, and a censored one before.
    times, event = np.array([3.0, 1.0, 2.0]), np.array([1.0, 0.0, 1.0])
    assert nelson_aalen(times, event).tolist() == [1.5, 0, 0.5]
    # Of x = 0, 1, 0 at times 1, 2, 3 the likelihood is e^b / (2 + e^b) / (1 + e^b), b = ln 2 / 2.
    coef, covariance = cox(np.array([[0.0], [1.0], [0.0]]), np.array([1.0, 2, 3]), np.ones(3))
    assert coef.item() == pytest.approx(np.log(2) / 2)
    assert 0 < covariance.item() < 10
    for survival in (False, True):
        found = coverage(2, survival=survival)
        full, complete, imputed = (each[1] for each in found.values())
        assert (full[:2] < imputed[:2]).all()
        assert (full < complete).all()
