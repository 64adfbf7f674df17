"""The simulation of missing values, in small."""

import numpy as np
import pytest

from tests.evidence.effects import coverage, draw


def test_the_simulation_of_missing_values():
    sample = draw(np.random.default_rng(0), survival=True)
    assert sample.event.sum() == 40
    many = [draw(np.random.default_rng(i), survival=False) for i in range(200)]
    assert np.mean([one.y.sum() for one in many]) == pytest.approx(40, abs=1.5)
    missing = np.mean([one.missing for one in many], axis=(0, 1))
    assert missing == pytest.approx([0.3, 0.3, 0], abs=0.02)
    for survival in (False, True):
        found = coverage(2, survival=survival)
        full, complete, imputed = (each[1] for each in found.values())
        assert (full[:2] < imputed[:2]).all()
        assert (full < complete).all()
