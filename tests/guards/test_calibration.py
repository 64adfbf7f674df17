"""Noise for a target epsilon, and what cannot be reached."""

import math

import pytest

from engram.guards.calibration import noise_multiplier, plan_of
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from tests.epsilons import epsilon, gaussian, poisson_epsilon, subset_epsilon
from tests.samples import entry

TARGET = {"privacy": "central", "clip": 0.5, "epsilon": 3.0, "num_rounds": 20}


def test_the_multiplier_is_the_least_with_which_rounds_and_scores_are_within_the_target():
    for settings, reach in [
        ({}, math.sqrt(20)),
        ({"privacy": "local"}, 2 * math.sqrt(20)),
        ({"privacy": "local", "eval_every": 7}, 2 * math.sqrt(23)),  # three reports of scores
    ]:
        with entry(settings):
            z = noise_multiplier(Experiment(**TARGET | settings))
            assert gaussian(reach / z) <= 3 < gaussian(1.002 * reach / z)


@pytest.mark.parametrize(
    ("sampling", "cost", "bounds", "known", "share"),
    [
        ("poisson", poisson_epsilon, 1, "central", 1 / 3),
        ("without-replacement", subset_epsilon, 2, "local", 1),
    ],
)
def test_sampling_needs_less_noise_than_known_cohorts(sampling, cost, bounds, known, share):
    e = Experiment(**TARGET, sampling=sampling, clients_per_round=2)
    z = noise_multiplier(e)
    assert plan_of(e).rate == 0.1
    assert cost(z / bounds, 0.1, 20, 1e-5) <= 3.0
    assert cost(0.998 * z / bounds, 0.1, 20, 1e-5) > 3.0
    assert z < noise_multiplier(Experiment(**TARGET | {"privacy": known})) * share


def test_the_rate_is_among_those_who_train():
    e = Experiment(**TARGET, sampling="poisson", clients_per_round=2, unseen_clients=4)
    assert plan_of(e).rate == 2 / 16
    assert plan_of(Experiment(**TARGET, clients_per_round=2)).rate == 1  # of known cohorts


def test_a_target_that_no_noise_reaches_is_one_line():
    e = Experiment(**TARGET | {"epsilon": 1e-6, "num_rounds": 10**6})
    with pytest.raises(Refused, match=r"epsilon must be larger: 1000000 rounds at delta 1e-05"):
        noise_multiplier(e)
    # A target that any noise reaches has the least.
    assert noise_multiplier(Experiment(**TARGET | {"epsilon": 1e9, "delta": 0.9})) < 0.01
    assert epsilon(0.01, 20, 0.9) < 1e9


MEANINGLESS = [
    ({"privacy": "none"}, "epsilon = 3.0 needs .*: set another privacy, or a guard that takes"),
    ({"noise_multiplier": 2.0}, "epsilon = 3.0 needs .*: noise-multiplier = 2.0 ends that"),
    ({"epsilon": math.inf}, "epsilon must be a finite number, got inf"),
    ({"epsilon": -1.0}, "epsilon must be greater than or equal to 0"),
]


def test_targets_that_mean_nothing_are_one_line():
    for settings, says in MEANINGLESS:
        with entry(settings, says), pytest.raises(ValueError, match=says):
            Experiment(**TARGET | settings)


def test_a_target_is_for_a_number_of_rounds():
    """A run that goes on for more rounds would need other noise: it is another run."""
    one, two = (Experiment(**TARGET | {"num_rounds": n}).identity() for n in (20, 30))
    assert one != two
    plain = {"privacy": "central", "clip": 0.5}
    one, two = (Experiment(**plain, num_rounds=n).identity() for n in (20, 30))
    assert one == two
