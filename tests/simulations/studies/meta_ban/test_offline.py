"""Offline estimates against enumeration: every log that there can be, by its probability."""

import sys
from itertools import product

import numpy as np
import pytest

from engram.bandits.logged import logged
from engram.bandits.policy import Policy, policy_server
from engram.bandits.studies.offline import estimate
from engram.settings.errors import Refused

KNOWN = policy_server(
    Policy(lambda rng: None, lambda state, user, arms, rng: (1, state), lambda state, *_: state), 1
)
P = np.array([0.7, 0.3])  # of the logging policy
PAYS = np.array([[0.2, 0.8], [0.1, 0.4]])  # of each arm in each round


def log_of(chosen):
    return logged(
        np.array(["ann", "ben"]),
        np.array([[[0.0], [1.0]], [[2.0], [3.0]]]),
        np.array(chosen),
        PAYS[np.arange(2), chosen],
        P[list(chosen)],
    )


def test_ips_and_dr_are_unbiased():
    expected = {"IPS": 0.0, "DR": 0.0}
    for chosen in product(range(2), repeat=2):
        found = estimate(KNOWN, KNOWN.init(0), log_of(chosen), draws=10)
        for name in expected:
            expected[name] += P[list(chosen)].prod() * found[name].value
    truth = PAYS[:, 1].mean()
    assert expected["IPS"] == pytest.approx(truth, rel=1e-12)
    # The regression that DR uses in a round is fitted to the other one, which is drawn apart.
    assert expected["DR"] == pytest.approx(truth, rel=1e-12)


def test_by_hand():
    found = estimate(KNOWN, KNOWN.init(0), log_of((0, 1)), draws=10)
    assert found["IPS"].value == pytest.approx((0 + 0.4 / 0.3) / 2)
    assert found["SNIPS"].value == pytest.approx(0.4)
    # A ridge regression on one row says its reward: 0.4 in the first round, and 0.2 in the other.
    assert found["DR"].value == pytest.approx((0.4 + 0.2 + (0.4 - 0.2) / 0.3) / 2)
    assert all(each.low <= each.value <= each.high for each in found.values())


def test_a_policy_that_draws_draws_anew_in_each_round():
    rng = np.random.default_rng(0)
    n = 400
    chosen = rng.integers(2, size=n)
    log = logged(
        np.zeros(n, int), np.ones((n, 2, 1)), chosen, chosen.astype(float), np.full(n, 0.5)
    )
    random = policy_server(
        Policy(
            lambda rng: None,
            lambda state, user, arms, rng: (int(rng.integers(len(arms))), state),
            lambda state, *_: state,
        ),
        1,
    )
    found = estimate(random, random.init(0), log, draws=200)["IPS"]
    # One arm in all rounds would get 0, or 1.
    assert found.value == pytest.approx(0.5, abs=4 * np.sqrt(0.75 / n))


def test_a_policy_that_never_plays_what_was_played():
    found = estimate(KNOWN, KNOWN.init(0), log_of((0, 0)), draws=10)
    assert found["IPS"].value == 0
    assert np.isnan(found["SNIPS"].value)


def test_one_round_is_too_few():
    log = log_of((0, 1))
    one = logged(*(np.asarray(column)[:1] for column in log))
    with pytest.raises(Refused, match="need at least two rounds, got 1"):
        estimate(KNOWN, KNOWN.init(0), one)


def test_without_obp_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "obp", None)
    with pytest.raises(Refused, match=r"offline estimates need obp: pip install .*\[offline\]"):
        estimate(KNOWN, KNOWN.init(0), log_of((0, 1)))
