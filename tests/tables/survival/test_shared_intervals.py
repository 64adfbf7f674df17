"""The intervals of the stratified fit, against fits without one site."""

import numpy as np

from engram.tables.survival.newton import fit
from engram.tables.survival.shared_intervals import shared_intervals
from engram.tables.survival.site_effects import fit_effects, site_sums
from tests.tables.survival.sites import COEF, draw_sites


def test_they_are_the_plain_one_and_the_hull_without_a_site_that_may_be_off():
    sites = draw_sites([COEF, COEF, np.add(COEF, [0.8, 0])], 90)

    def own(m, k):
        """Returns the fit in which a site has a coefficient for itself."""
        apart = [np.where(i == m, one.x[:, [k]], 0) for i, one in enumerate(sites)]
        both = zip(sites, apart, strict=True)
        return fit([one._replace(x=np.hstack([one.x, more])) for one, more in both])

    found = shared_intervals(
        fit_effects(site_sums(sites), np.zeros((len(sites), 2), bool)), level=0.9
    )
    whole, z = fit(sites), 1.6448536
    np.testing.assert_allclose(found.coef, whole.coef, atol=1e-8)
    np.testing.assert_allclose(found.weighted_mean.low, whole.coef - z * whole.standard_error)
    rest = [fit(sites[:m] + sites[m + 1 :]) for m in range(3)]
    gain = np.array(
        [[2 * (own(m, k).sums.loglik - whole.sums.loglik) for k in (0, 1)] for m in range(3)]
    )
    far = gain.max(axis=0) - gain
    assert (far[:2, 0] > 1.5 * z**2).all()
    assert (far[:, 1] < 0.75 * z**2).all()
    each = [(rest[2],), rest]  # who may be off in a column
    low = [min(one.coef[k] - z * one.standard_error[k] for one in each[k]) for k in (0, 1)]
    high = [max(one.coef[k] + z * one.standard_error[k] for one in each[k]) for k in (0, 1)]
    # One of Newton's steps is off by less than 0.15 standard errors here.
    near = 0.15 * whole.standard_error
    assert (np.abs(found.all_but_one.low - low) < near).all()
    assert (np.abs(found.all_but_one.high - high) < near).all()
    assert (found.all_but_one.high - found.all_but_one.low > 2 * z * whole.standard_error).all()
    # Without the site that alone determines a column, there is no fit.
    sites[1:] = [one._replace(x=one.x * [1, 0]) for one in sites[1:]]
    effects = fit_effects(site_sums(sites), np.zeros((len(sites), 2), bool))
    found = shared_intervals(effects)
    assert np.isfinite(found.all_but_one.low).tolist() == [True, False]
    assert np.isfinite(found.weighted_mean).all()
