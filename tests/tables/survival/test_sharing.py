"""Adaptive sharing of hazards, against direct maximization."""

import numpy as np
import pytest
from scipy.optimize import minimize

from engram.tables.survival.newton import fit
from engram.tables.survival.sharing import Scatter, personalize, share
from engram.tables.survival.site_effects import site_sums
from tests.tables.survival.sites import COEF, draw_sites, partial_likelihood, with_column


def test_personal_coefficients_are_modes_by_the_likelihood_and_the_others_scatter():
    site, unit = draw_sites([COEF])[0], np.array([1.0, 4.0])
    middle, variance = np.array([0.3, -0.2]), np.array([0.04, 0.0])
    scatter = Scatter(middle, variance, middle, unit)
    coef, apart = personalize(site_sums([site])[0], scatter)

    def loss(first):
        beta = np.array([first[0], middle[1]])
        return (first[0] - middle[0]) ** 2 / 0.08 - partial_likelihood(site, beta).loglik

    assert not apart.any()
    best = minimize(loss, middle[:1], method="Nelder-Mead", options={"xatol": 1e-9})
    np.testing.assert_allclose(coef, [best.x[0], middle[1]], atol=1e-6)
    coef, apart = personalize(site_sums([site])[0], scatter._replace(center=middle + 3))
    assert apart.tolist() == [False, False]  # as it counts from the middle
    # Sites share what agrees, and keep what does not.
    sites = draw_sites([COEF, np.add(COEF, [2.0, 0]), COEF, COEF, COEF], 120)
    found = share(site_sums(sites), 2)
    assert np.argwhere(found.effects.separate).tolist() == [[1, 0]]
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
