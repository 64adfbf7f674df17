"""The benchmark of bandits runs; and its plain loop is Meta-Ban."""

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from benchmarks import bandits
from benchmarks.bandits import Size
from engram.bandits.meta_ban import meta_ban
from engram.bandits.policy import CHOOSE, INIT, UPDATE, generator
from tests.samples import entry

SMALL = Size(5, 7, (6,), 1.0)


def test_times_are_numbers():
    for name in bandits.policies(SMALL):
        with entry(name):
            play = bandits.served(bandits.policies(SMALL)[name], SMALL)
            assert bandits.time_rounds(play, bandits.offers(SMALL, 6)) > 0


@pytest.mark.full
@pytest.mark.parametrize("hidden", [(6,), (6, 5)])
def test_the_plain_loop_does_what_meta_ban_does(hidden):
    size = SMALL._replace(hidden=hidden)
    policy = meta_ban(size.dim, hidden=hidden, group_cap=None, buffer=bandits._BUFFER)
    state = bandits.late(policy.init([generator(0, 0, INIT)]), size)
    loop = bandits.PlainMetaBan(state, size)
    for t, offer in enumerate(bandits.offers(size, 20)):
        users, x = np.array([offer.user]), torch.from_numpy(offer.arms).float()
        chosen, state = policy.choose(state, users, offer.arms[None], [generator(0, t, CHOOSE)])
        assert loop.choose(offer.user, x, generator(0, t, CHOOSE)) == chosen[0]
        paid, rng = offer.rewards[chosen], generator(0, t, UPDATE)
        state = policy.update(state, users, offer.arms[chosen], paid, [rng])
        loop.update(offer.user, x[chosen[0]], float(paid[0]), generator(0, t, UPDATE))
    for layer, (theta, own) in enumerate(
        zip(state.meta.theta, bandits._layers(loop.meta), strict=True)
    ):
        torch.testing.assert_close(theta[0], own.weight.detach(), rtol=1e-3, atol=1e-4)
        for user, network in enumerate(loop.users):
            found = state.site.lasts[layer].read()[0, user]
            expected = bandits._layers(network)[layer].weight.detach()
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_it_prints_a_table(monkeypatch):
    monkeypatch.setattr(bandits, "SIZES", (SMALL,))
    command = typer.Typer()
    command.command()(bandits.main)
    result = CliRunner().invoke(command, ["--rounds", "4"])
    assert result.exit_code == 0, result.output
    for text in ("Meta-Ban", "LinUCB-IND", "plain loop", "at most"):
        assert text in result.output
