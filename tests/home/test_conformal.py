"""Intervals by split conformal prediction: their coverage, whatever the model and the noise."""

import numpy as np
import pytest

from engram.home.prediction_intervals import LEVELS, radii
from tests.samples import entry


def test_the_radius_is_an_order_statistic():
    errors = np.arange(1.0, 20.0)[::-1, None]  # 1 to 19
    # ceil(20 level): 10, 16, 18, 19; 0.99 needs 99 rows.
    found = {k: r.tolist() for k, r in radii(errors).items()}
    assert found == {0.5: [10], 0.8: [16], 0.9: [18], 0.95: [19]}
    assert radii(np.arange(1.0, 110)[:, None], [0.9])[0.9] == 99  # not 110 * 0.9 rounded up


def test_a_level_needs_rows():
    for level, least in [(0.5, 1), (0.8, 4), (0.9, 9), (0.95, 19), (0.99, 99)]:
        with entry(level, least):
            assert level in LEVELS
            assert level in radii(np.ones((least, 1)))
            assert level not in radii(np.ones((least - 1, 1)))


def test_coverage_is_what_the_ranks_say():
    for draw in ["normal", "exponential", "standard_cauchy"]:
        for rows in [9, 19, 40]:
            with entry(draw, rows):
                rng, worlds = np.random.default_rng(rows), 4000
                errors = np.abs(getattr(rng, draw)(size=(rows + 1, worlds)))  # the last row is new
                for level, radius in radii(errors[:-1]).items():
                    expected = np.ceil((rows + 1) * level - 1e-9) / (rows + 1)
                    assert level <= expected <= level + 1 / (rows + 1)
                    # Five standard deviations of a share among so many worlds.
                    slack = 5 * np.sqrt(expected * (1 - expected) / worlds)
                    assert (errors[-1] <= radius).mean() == pytest.approx(expected, abs=slack)
