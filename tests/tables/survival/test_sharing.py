"""Adaptive sharing of hazards, against direct maximization."""

import numpy as np
import pytest
from scipy.optimize import minimize

from engram.tables.survival.newton import fit
from engram.tables.survival.partial import partial_likelihood
from engram.tables.survival.sharing import Scatter, check_sharing, personalize, share
from tests.tables.survival.sites import COEF, draw_sites, sums_of, with_column


def test_a_site_computes_the_mode_of_its_likelihood_and_the_others_scatter():
    site, scale = draw_sites([COEF])[0], np.array([1.0, 0.5])
    middle, variance = np.array([0.3, -0.2]), np.array([0.04, 0.0])
    scatter = Scatter(middle, variance, middle, scale, np.ones(2))
    coef, apart = personalize(sums_of([site])[0], scatter)

    def loss(first):
        beta = np.array([first[0], middle[1]]) / scale
        return (first[0] - middle[0]) ** 2 / 0.08 - partial_likelihood(site, beta).loglik

    assert not apart.any()
    best = minimize(loss, middle[:1], method="Nelder-Mead", options={"xatol": 1e-9})
    np.testing.assert_allclose(coef * scale, [best.x[0], middle[1]], atol=1e-6)
    coef, apart = personalize(sums_of([site])[0], scatter._replace(center=middle + 3))
    assert apart.tolist() == [False, False]  # by the middle


def test_sites_share_what_agrees_and_keep_what_does_not():
    sites = draw_sites([COEF, np.add(COEF, [2.0, 0]), COEF, COEF, COEF], 120)
    found = share(sums_of(sites), 2)
    assert np.argwhere(found.apart).tolist() == [[1, 0]]
    direct = fit(with_column(sites, 1, 0))
    np.testing.assert_allclose(found.effects.center, direct.coef[:2], atol=1e-6)
    own = direct.coef[0] + direct.coef[2]
    # By a prior of deviation 1, for an estimate with an error of about 0.2.
    gap = own - direct.coef[0]
    assert found.coef[1, 0] - direct.coef[0] == pytest.approx(gap / (1 + 0.2**2), rel=0.03)
    each = np.stack([fit([one]).coef for one in sites])
    others = np.arange(5) != 1
    spread = [np.abs(a - direct.coef[:2])[others].mean(axis=0) for a in (found.coef, each)]
    assert (spread[0] < 0.7 * spread[1]).all()
    for way in ("hard", "soft"):
        with pytest.raises(ValueError, match=f"must be adaptive for hazards.*few, got '{way}'"):
            check_sharing(way)
