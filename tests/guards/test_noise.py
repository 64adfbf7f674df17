"""Noise, secret unless a simulation asks for its seed's, and the privacy that settings promise."""

import re

import pytest
import torch

from engram.core.streams import Stream
from engram.guards.accounting.accountant import guarantee, is_weak
from engram.guards.accounting.gaussian import epsilon
from engram.guards.noise import secret_noise, simulated_noise
from engram.settings.experiment import Experiment
from tests.samples import entry

SOURCES = {"secret": secret_noise, "simulated": simulated_noise(3)}


@pytest.mark.parametrize("name", SOURCES)
def test_it_is_standard_normal(name):
    drawn = SOURCES[name](200_000, Stream.CLIENT_NOISE, 1, 2)
    assert drawn.dtype == torch.float32
    assert drawn.isfinite().all()
    # Standard errors: of the mean 0.0022, of the variance 0.0032, of the fourth moment 0.022.
    assert abs(float(drawn.mean())) < 0.012
    assert abs(float(drawn.square().mean()) - 1) < 0.016
    assert abs(float((drawn**4).mean()) - 3) < 0.11
    # 4.55 and 0.27 % lie beyond two and three deviations: 9100 and 540, give or take 95 and 23.
    assert abs(int((drawn.abs() > 2).sum()) - 9100) < 500
    assert abs(int((drawn.abs() > 3).sum()) - 540) < 120


def test_secret_noise_is_never_the_same_and_simulated_noise_a_function_of_seed_purpose_and_keys():
    first, again = (secret_noise(100, Stream.CLIENT_NOISE, 1, 2) for _ in range(2))
    assert not torch.equal(first, again)

    def drawn(seed=3, stream=Stream.CLIENT_NOISE, *keys):
        return simulated_noise(seed)(100, stream, *(keys or (1, 2)))

    assert torch.equal(drawn(), drawn())
    for other in (
        drawn(4),
        drawn(3, Stream.SERVER_NOISE),
        drawn(3, Stream.CLIENT_NOISE, 1, 3),
        drawn(3, Stream.CLIENT_NOISE, 2, 2),
    ):
        assert (drawn() != other).all()
    for noise in SOURCES.values():
        assert noise(0, Stream.SERVER_NOISE, 1).shape == (0,)


CENTRAL = {"privacy": "central", "clip": 0.5, "num_rounds": 20}


def test_epsilon_is_that_of_a_client_that_is_asked_in_every_round():
    """Updates lie twice as far apart where privacy is local."""
    for privacy in ["central", "local"]:
        with entry(privacy):
            e = Experiment(**CENTRAL | {"privacy": privacy}, noise_multiplier=8.0)
            expected = epsilon(8.0 / (2 if privacy == "local" else 1), 20, 1e-5)
            assert f"{privacy} privacy by noise-multiplier 8 and clip 0.5" in guarantee(e)
            assert f"epsilon at most {expected:.4g} at delta 1e-05 after 20 rounds" in guarantee(e)
            assert not is_weak(e)
            assert "hardly" not in guarantee(e)


def test_a_run_that_protects_hardly_anybody_is_said_to():
    assert guarantee(Experiment()) == ""
    assert not is_weak(Experiment())
    weak = Experiment(**CENTRAL, noise_multiplier=0.05)
    assert is_weak(weak)
    assert "above 10, which protects hardly anybody: raise noise-multiplier" in guarantee(weak)
    assert is_weak(Experiment(**CENTRAL | {"num_rounds": 10**6}, noise_multiplier=1e-6))


def test_a_target_has_its_noise_and_its_adjacency():
    said = guarantee(Experiment(**CENTRAL, epsilon=3))
    (noise,) = re.findall(r"by noise-multiplier ([\d.]+) \(for epsilon\)", said)
    assert epsilon(float(noise), 20, 1e-5) == pytest.approx(3, rel=1e-3)
    assert "where one client is added or removed" in said
    local = guarantee(Experiment(**CENTRAL | {"privacy": "local"}, epsilon=3))
    assert "where one client's data are replaced by any others" in local
    assert "amplified" not in said + local


def test_amplification_says_against_whom_and_guarantees_name_uncovered_parts():
    said = guarantee(Experiment(**CENTRAL, sampling="poisson", clients_per_round=2))
    assert "amplified by Poisson sampling at rate 0.1 against whoever sees the models, and" in said
    assert "where one client is added or removed, amplified" in said
    said = guarantee(Experiment(**CENTRAL, sampling="without-replacement", clients_per_round=2))
    assert (
        "where one client's data are replaced by any others, amplified by sampling without " in said
    )
    assert "without replacement at rate 0.1 against whoever sees the models, and not who" in said
    assert guarantee(Experiment(**CENTRAL)).count("a round chosen by them, are not covered") == 1
    assert "chosen" not in guarantee(Experiment(**CENTRAL, validation_fraction=0))
