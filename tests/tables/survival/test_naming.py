"""The search for sites that differ, against models with one more column."""

import numpy as np
import pytest

from engram.tables.survival.naming import efficient_scores, name_sites
from engram.tables.survival.newton import fit
from engram.tables.survival.partial import total
from engram.tables.survival.site_effects import fit_effects, site_sums
from tests.tables.survival.sites import COEF, draw_sites, partial_likelihood, with_column


def test_scores_and_ratios_are_those_of_a_column_for_one_site():
    sites = draw_sites([COEF, COEF, np.add(COEF, [0, 0.7]), COEF])
    plain, scores = (
        fit(sites),
        efficient_scores(fit_effects(site_sums(sites), np.zeros((len(sites), 2), bool))),
    )
    for m, k in np.ndindex(4, 2):
        more = with_column(sites, m, k)
        sums = total([partial_likelihood(one, np.append(plain.coef, 0)) for one in more])
        variance = 1 / np.linalg.inv(sums.information)[-1, -1]
        assert scores[m, k] == pytest.approx(sums.score[-1] / np.sqrt(variance), abs=1e-6)
    separate = np.zeros((4, 2), dtype=bool)
    separate[2, 1] = True
    effects, direct = fit_effects(site_sums(sites), separate), fit(with_column(sites, 2, 1))
    np.testing.assert_allclose(effects.center, direct.coef[:2], atol=1e-6)
    assert effects.coef[2, 1] == pytest.approx(direct.coef[1:].sum(), abs=1e-6)
    found = name_sites(site_sums(sites), 2, level=0.5)
    assert [(one.site, one.column) for one in found.differences] == [(2, 1)]
    ratio = 2 * (direct.sums.loglik - plain.sums.loglik)
    assert found.differences[0].score == pytest.approx(scores[2, 1])
    assert found.differences[0].ratio == pytest.approx(ratio, abs=1e-6)


def test_two_that_differ_are_named_in_turn_and_of_two_sites_none():
    sites = draw_sites([COEF, np.add(COEF, [1.5, 0]), COEF, COEF, np.subtract(COEF, [0, 2.0])], 90)
    found = name_sites(site_sums(sites), 2)
    assert {(one.site, one.column) for one in found.differences} == {(1, 0), (4, 1)}
    assert all(one.p_value < 1e-3 for one in found.differences)
    assert found.differences[0].score * found.effects.coef[found.differences[0][:2]] > 0
    again = fit_effects(site_sums(sites), found.effects.separate)
    np.testing.assert_allclose(found.effects.coef, again.coef, atol=1e-6)
    assert not name_sites(site_sums(sites[:2]), 2).differences
    exposed = [one._replace(x=one.x > 0) for one in draw_sites([[0.0, 2.0]] * 4, 90)]
    # Nobody who is exposed has an event: the likelihood rises without end.
    exposed[0] = exposed[0]._replace(event=exposed[0].event & ~exposed[0].x[:, 1])
    found = name_sites(site_sums([one._replace(x=one.x * 1.0) for one in exposed]), 2)
    assert [(one.site, one.column) for one in found.differences] == [(0, 1)]
    assert found.effects.coef[0, 1] < -8
