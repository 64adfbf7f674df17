"""The ensemble's regret on short streams; ``python -m tests.evidence.online`` has the long ones."""

import pytest

from engram.online import loss_streams
from engram.online.play import saddle_game
from tests.evidence.online import STREAMS, compare, compare_game
from tests.samples import sampled

SHORT, LONG = 1000, 4000


KINDS = ["strongly convex", "absolute", "logistic", "random linear"]


@pytest.fixture(scope="module", params=sampled(KINDS, ["strongly convex", "random linear"]))
def found(request):
    return request.param, compare(STREAMS[request.param], (SHORT, LONG), 2)


def test_regret_beside_gradient_descent(found):
    # Measured: 0.36, 0.11, 0.49 and 1.13.
    name, of = found
    most = {"strongly convex": 0.45, "absolute": 0.15, "logistic": 0.7, "random linear": 1.4}
    assert of["ensemble"][LONG] <= most[name] * of["OGD"][LONG]


def test_regret_grows_as_curvature_lets_it(found):
    # As log T it would grow by 1.20, as sqrt T by 2. Measured: 1.20, 1.16, 1.76 and 2.01. Of
    # absolute losses the mean is curved, around its minimum; the paper promises sqrt T there.
    name, of = found
    growth = of["ensemble"][LONG] / of["ensemble"][SHORT]
    most = {"strongly convex": 1.35, "absolute": 1.35, "logistic": 2.0, "random linear": 2.3}
    assert growth <= most[name]
    assert of["OGD"][LONG] / of["OGD"][SHORT] >= 1.6  # it is the learner that does


def test_a_fixed_loss_costs_a_constant():
    of = compare(loss_streams.fixed, (SHORT, LONG), 2)["ensemble"]
    assert 0 < of[LONG] <= of[SHORT] + 0.05


def test_honest_players_regret_a_constant():
    # Measured: 0.91 and 0.13.
    of = compare_game(saddle_game, (250, SHORT), 2)
    assert of["ensemble"][SHORT] <= 1.2 * of["ensemble"][250]
    assert of["ensemble"][SHORT] <= 0.2 * of["OGD"][SHORT]
