"""Runs of networks that are played at once are each what they are alone."""

import numpy as np
import pytest
import torch

from engram.bandits.meta_ban import meta_ban
from engram.bandits.neural import neural_bandit
from engram.bandits.policy import INIT
from tests.bandits.neural_support import generators, played, rounds

NEURAL = {"alpha": (0.1, 0.5, 0.0), "lam": (0.1, 1.0, 0.3), "eta": (0.3, 0.1, 0.5)}
META = {
    "alpha": (0.1, 0.3, 0.0),
    "nu": (2.0, 5.0, np.inf),
    "gamma": (0.4, 0.2, 0.1),
    "lam": (0.0, 0.05, 0.1),
    "eta_user": (0.3, 0.2, 0.5),
    "eta_meta": (0.05, 0.04, 0.02),  # a sum over rows in Algorithm 4 wants a small one
}
FEW = {"hidden": (5,), "batch": 4, "buffer": 6}
STEPS = {"user_steps": 2, "meta_steps": 2, "own_weight": 1.0}
CASES = {  # a policy, its settings of each run, and those of all
    "one network": (neural_bandit, NEURAL, {"steps": 2}),
    "one each, Thompson": (neural_bandit, NEURAL, {"steps": 2, "shared": False, "thompson": True}),
    "adapt": (meta_ban, META, STEPS | {"group_cap": 5}),
    "eq6": (meta_ban, META, STEPS | {"group_cap": 5, "meta_gradient": "eq6", "theta": "draw"}),
    "alg4": (meta_ban, META, STEPS | {"group_cap": None, "meta_gradient": "alg4"}),
}


def networks(state, run):
    """Meta-Ban's Theta and users' networks, or the neural bandit's networks, of ten users."""
    stacks = state.site.lasts if hasattr(state, "site") else state.thetas
    theta = state.meta.theta if hasattr(state, "meta") else ()
    return [*(w[run] for w in theta), *(stack.read()[run, :10] for stack in stacks)]


@pytest.mark.parametrize("name", CASES)
def test_runs_at_once_are_single_runs(name):
    make, varied, fixed = CASES[name]
    seeds, environments = (3, 4, 5), [rounds(seed, 60) for seed in (6, 7, 8)]

    def play(settings, *which):
        policy = make(4, runs=len(which), **FEW, **fixed, **settings)
        own = [seeds[run] for run in which]
        state = policy.init(generators(own, 0, INIT))
        return played(policy.batched, [environments[run] for run in which], own, state)

    together, state = play({key: np.array(values) for key, values in varied.items()}, 0, 1, 2)
    for run in range(3):
        alone, ended = play({key: values[run] for key, values in varied.items()}, run)
        assert together[:, run].tolist() == alone[:, 0].tolist()
        for a, b in zip(networks(state, run), networks(ended, 0), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
