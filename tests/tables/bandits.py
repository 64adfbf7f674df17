"""Policies of multitask bandits, small environments, and states that have seen rows."""

import numpy as np
import pytest

from engram.tables.bandits.environments import sparse_environments
from engram.tables.bandits.policies import (
    close_tasks,
    lasso_bandit,
    molar_bandit,
    ols_bandit,
    robust_multitask_bandit,
    trace_norm_bandit,
)

POLICIES = {
    "molar": molar_bandit,
    "ols": ols_bandit,
    "lasso": lasso_bandit,
    "robust": robust_multitask_bandit,
    "trace norm": trace_norm_bandit,
}
WITH_HISTORY = [name for name in POLICIES if name != "trace norm"]
MODELS = pytest.mark.parametrize("model", ["C", "P"])
P = (0.9, 0.7, 0.5, 0.35, 0.1)


def generators(seed, count=5):
    return np.random.default_rng(seed).spawn(count)


def small_environments(model, activation=P, horizon=300, sigma=0.5, dim=4):
    """Five tasks, one of which is seldom activated, that differ in two of four coordinates."""
    rng = np.random.default_rng(0)
    given = {"activation": activation, "horizon": horizon, "sigma": sigma}
    return sparse_environments(rng, model, dim=dim, differing=2, arms=3, **given)


def seen(policy, rows):
    """Returns the state of each task after rows of one arm."""
    return [
        policy.observe(policy.init(1, x.shape[1]), x[:, None], np.zeros(len(y), dtype=np.intp), y)
        for x, y, *_ in rows
    ]


def coefficients(policy, rows):
    """Returns the coefficients of tasks with these rows, after a batch."""
    return np.stack([own.coefs[0] for own in close_tasks(policy, seen(policy, rows))])


def assert_same_state(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.coefs, b.coefs)
        for x, y in zip((*a.fresh, *a.past), (*b.fresh, *b.past), strict=True):
            np.testing.assert_array_equal(x, y)
