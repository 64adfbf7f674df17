"""The privacy that settings promise, in words."""

import re

import pytest

from engram.guards.accounting.guarantee import guarantee, is_weak
from engram.settings.experiment import Experiment
from tests.epsilons import epsilon

CENTRAL = {"privacy": "central", "clip": 0.5, "num_rounds": 20}


@pytest.mark.parametrize("privacy", ["central", "local"])
def test_epsilon_is_that_of_a_client_that_is_asked_in_every_round(privacy):
    e = Experiment(**CENTRAL | {"privacy": privacy}, noise_multiplier=8.0)
    expected = epsilon(8.0 / (2 if privacy == "local" else 1), 20, 1e-5)
    assert f"{privacy} privacy by noise-multiplier 8 and clip 0.5" in guarantee(e)
    assert f"epsilon at most {expected:.4g} at delta 1e-05 after 20 rounds" in guarantee(e)
    assert not is_weak(e)
    assert "hardly" not in guarantee(e)


def test_what_protects_hardly_anybody_is_said_and_nothing_is_promised_without_privacy():
    weak = Experiment(**CENTRAL, noise_multiplier=0.05)
    assert is_weak(weak)
    assert "above 10, which protects hardly anybody: raise noise-multiplier" in guarantee(weak)
    assert is_weak(Experiment(**CENTRAL | {"num_rounds": 10**6}, noise_multiplier=1e-6))
    assert guarantee(Experiment()) == ""
    assert not is_weak(Experiment())


def test_a_target_has_its_noise_and_its_adjacency():
    said = guarantee(Experiment(**CENTRAL, epsilon=3))
    (noise,) = re.findall(r"by noise-multiplier ([\d.]+) \(for epsilon\)", said)
    assert epsilon(float(noise), 20, 1e-5) == pytest.approx(3, rel=1e-3)
    assert "where one client is added or removed" in said
    local = guarantee(Experiment(**CENTRAL | {"privacy": "local"}, epsilon=3))
    assert "where one client's data are replaced by any others" in local
    assert "amplified" not in said + local


def test_amplification_says_against_whom():
    said = guarantee(Experiment(**CENTRAL, sampling="poisson", clients_per_round=2))
    assert "amplified by Poisson sampling at rate 0.1 against whoever sees the models, and" in said
    assert "where one client is added or removed, amplified" in said
    said = guarantee(Experiment(**CENTRAL, sampling="without-replacement", clients_per_round=2))
    assert "where one client's data are replaced by any others, amplified by sampling wi" in said
    assert "without replacement at rate 0.1 against whoever sees the models, and not who" in said


def test_what_is_not_covered_is_named():
    assert guarantee(Experiment(**CENTRAL)).count("a round chosen by them, are not covered") == 1
    assert "chosen" not in guarantee(Experiment(**CENTRAL, validation_fraction=0))
