"""A site's own intervals, against Firth's likelihood written as loops."""

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

from engram.tables.site import Rows
from engram.tables.survival.own_intervals import own_intervals
from tests.tables.survival.sites import draw_sites


def penalized(rows, beta):
    """Efron's log-likelihood with Firth's penalty; and the information."""
    x, time, _, event, *_ = rows
    loglik, information = 0.0, np.zeros((x.shape[1],) * 2)
    for at in np.unique(time[event]):
        died = np.flatnonzero(event & (time == at))
        loglik += (x[died] @ beta).sum()
        for k in range(len(died)):
            risk = np.exp(x @ beta) * (time >= at)
            risk[died] *= 1 - k / len(died)
            loglik -= np.log(risk.sum())
            information += np.cov(x.T, aweights=risk, ddof=0)
    return loglik + np.log(np.linalg.det(information)) / 2, information


def test_they_are_the_hull_of_walds_and_the_profile_interval():
    site = draw_sites([[0.8, -0.4]], 24)[0]
    site = site._replace(y=np.ceil(site.y * 8))  # with ties
    assert len(np.unique(site.y[site.event])) < site.event.sum()
    tight = {"method": "Nelder-Mead", "options": {"xatol": 1e-8, "fatol": 1e-12}}
    best = minimize(lambda b: -penalized(site, b)[0], np.zeros(2), **tight)
    error = np.sqrt(np.diag(np.linalg.inv(penalized(site, best.x)[1])))
    found = own_intervals(site, level=0.9)
    np.testing.assert_allclose(found.coef, best.x, atol=1e-5)
    np.testing.assert_allclose(found.standard_error, error, rtol=1e-5)
    z = 1.6448536

    def fallen(value, k):
        """Twice the fall of the profile likelihood."""
        profile = minimize_scalar(lambda other: -penalized(site, np.insert([other], k, value))[0])
        return 2 * (profile.fun - best.fun)

    for k, ends in enumerate(np.transpose(found.limits)):
        falls = np.array([fallen(end, k) for end in ends])
        distances = np.abs(ends - best.x[k]) / error[k]
        np.testing.assert_allclose(np.minimum(falls**0.5, distances), z, rtol=1e-4)
    assert found.limits.high[0] - best.x[0] > z * error[0] * 1.01  # the profile's


def test_few_events_and_dependent_columns_do_no_harm():
    for seed in range(6):  # three events for two columns
        site = draw_sites([[0.5, 1.0]], 12, seed)[0]
        site = site._replace(event=site.event & (site.y <= np.sort(site.y[site.event])[2]))
        found = own_intervals(site)
        assert (found.limits.low < found.coef).all()
        assert (found.coef < found.limits.high).all()
        assert np.isfinite(found.limits).all()
    x, time, _, event, *_ = draw_sites([[0.5, 1.0]])[0]
    three = np.column_stack([x[:, 0], np.ones(len(x)), x[:, 1], 2 * x[:, 1]])
    found, alone = (own_intervals(Rows(each, time, None, event)) for each in (three, x))
    assert np.isnan(found.coef).tolist() == [False, True, True, True]
    assert np.isinf(found.limits.high).tolist() == [False, True, True, True]
    assert found.limits.low[0] == pytest.approx(alone.limits.low[0], abs=1e-4)
    none = own_intervals(Rows(x, time, None, np.zeros(len(x), dtype=bool)))
    assert np.isinf(none.limits).all()
