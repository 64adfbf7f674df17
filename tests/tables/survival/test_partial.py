"""The partial likelihood by its definition, its derivatives by differences, and its maximum."""

import numpy as np
import pytest
from scipy.optimize import minimize

from engram.tables.site import Rows
from engram.tables.survival.newton import NoMaximum, fit
from engram.tables.survival.partial import likelihood_sums, penalize, risk_sets, total
from tests.tables.survival.sites import partial_likelihood

RNG = np.random.default_rng(0)
X, TIME = RNG.normal(5, 1, (60, 3)), RNG.integers(3, 15, 60) * 1.0
EVENT, ENTRY, WEIGHTS = RNG.random(60) < 0.6, TIME - RNG.integers(1, 8, 60), RNG.random(60) * 3
PLAIN, LATE = Rows(X, TIME, None, EVENT), Rows(X, TIME, None, EVENT, ENTRY)
CASES = [PLAIN, LATE, LATE._replace(weights=WEIGHTS)]


def by_definition(rows, beta, ties):
    x, time, weights, event, entry, _ = rows
    entry = np.full(len(time), -np.inf) if entry is None else entry
    weights = np.ones(len(time)) if weights is None else weights
    risk, found = weights * np.exp(x @ beta), 0.0
    for at in np.unique(time[event]):
        there, died = (entry < at) & (at <= time), event & (time == at)
        shares = np.arange(died.sum()) / died.sum() if ties == "efron" else [0.0]
        found += weights[died] @ (x[died] @ beta)
        for share in shares:
            size = risk[there].sum() - share * risk[died].sum()
            found -= weights[died].sum() / len(shares) * np.log(size)
    return found


def slope(function, beta, step=1e-5):
    ways = np.eye(len(beta)) * step
    return np.stack([(function(beta + w) - function(beta - w)) / (2 * step) for w in ways], axis=-1)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_sums_are_the_likelihood_and_its_derivatives(ties):
    for rows in CASES:
        check_sums(rows, ties)


def check_sums(rows, ties):
    beta = np.array([0.3, -0.8, 0.5])
    sums = likelihood_sums(risk_sets(rows, ties), beta, third=True)
    assert sums.loglik == pytest.approx(by_definition(rows, beta, ties), rel=1e-12)
    near = {"rtol": 1e-6, "atol": 1e-6}
    score = slope(lambda b: by_definition(rows, b, ties), beta)
    np.testing.assert_allclose(sums.score, score, **near)
    information = slope(lambda b: -partial_likelihood(rows, b, ties).score, beta)
    np.testing.assert_allclose(sums.information, information, **near)
    third = slope(lambda b: partial_likelihood(rows, b, ties).information, beta)
    np.testing.assert_allclose(sums.third, third, **near)
    far = total([sums, partial_likelihood(PLAIN._replace(x=X + 1e3), beta, ties)])
    assert far.loglik == pytest.approx(sums.loglik + by_definition(PLAIN, beta, ties), rel=1e-9)
    assert far.events == 2 * EVENT.sum()


def test_where_the_likelihood_has_no_maximum_firths_penalty_has_one():
    apart = Rows(np.column_stack([X[:, 0], TIME < 9]), TIME, None, EVENT & (TIME < 9))
    with pytest.raises(NoMaximum, match=r"coefficient of old \(up\).* use Firth's penalty"):
        fit([apart], names=["dose", "old"])

    def penalized(beta):
        return -penalize(likelihood_sums(risk_sets(apart), beta, third=True)).loglik

    best = minimize(penalized, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-8})
    found = fit([apart], penalized=True)
    np.testing.assert_allclose(found.coef, best.x, atol=1e-5)
    assert found.sums.loglik == pytest.approx(-best.fun, rel=1e-9)


def test_a_fit_without_a_maximum_says_why():
    twice = PLAIN._replace(x=X @ [[1, 0, 1], [0, 1, 1], [0, 0, 0]])
    faults = {
        "no event was observed": PLAIN._replace(event=np.zeros(60, dtype=bool)),
        "column x2 is constant among": PLAIN._replace(x=X * [1, 1, 0] + 2001),
        "column x. is a linear combination": twice,
    }
    for words, rows in faults.items():
        with pytest.raises(NoMaximum, match=words):
            fit([rows])
