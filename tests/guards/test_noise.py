"""Noise, secret unless a simulation asks for its seed's."""

import pytest
import torch

from engram.core.streams import Stream
from engram.guards.noise import secret_noise, simulated_noise

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
    alike = 3, Stream.CLIENT_NOISE
    for other in ((4,), (3, Stream.SERVER_NOISE), (*alike, 1, 3), (*alike, 2, 2)):
        assert (drawn() != drawn(*other)).all()
    for noise in SOURCES.values():
        assert noise(0, Stream.SERVER_NOISE, 1).shape == (0,)
