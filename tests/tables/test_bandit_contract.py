"""What every policy of multitask bandits does, and what the family is for."""

import numpy as np
import pytest

from engram.tables.bandits.environments import regret, sparse_environments
from engram.tables.bandits.policies import molar_bandit, ols_bandit, play_tasks
from engram.tables.bandits.site import TaskState
from tests.tables.bandits import (
    EACH,
    MODELS,
    POLICIES,
    WITH_HISTORY,
    assert_same_state,
    generators,
    small_environments,
)


def round_by_round(policy, environments, rngs, first):
    """Plays as ``play_tasks`` should, with a call for each round, and one task after another."""
    model = environments[0]
    state = policy.init(len(environments), model.parameters, model.contexts.shape[2])
    lost, end = [], first
    for t in range(len(model.active)):
        now = [environment.rounds(t, t + 1) for environment in environments]
        contexts = [environment.contexts for environment in now]
        actions = policy.choose(state, contexts, rngs)
        pairs = list(zip(now, actions, strict=True))
        rewards = [w.rewards[:, a[0]] if len(a) else np.empty(0) for w, a in pairs]
        state = policy.update(state, contexts, actions, rewards)
        lost.append([regret(w, a)[0] for w, a in pairs])
        if t + 1 == end:
            state, end = policy.close_batch(state), 2 * end
    return np.cumsum(lost, axis=0).T


@EACH
@MODELS
def test_every_policy_meets_the_contract(name, model):
    check_a_batch_at_once_is_round_by_round(name, model)
    check_permuting_tasks_permutes_results(name, model)
    check_regret_grows_from_nothing_where_tasks_are_activated_and_slower_than_at_random(name, model)
    check_tasks_that_are_never_activated_change_nothing(name, model)


def check_a_batch_at_once_is_round_by_round(name, model):
    environments = small_environments(model, horizon=150)
    at_once = play_tasks(POLICIES[name](), environments, generators(5), first=3)
    in_turn = round_by_round(POLICIES[name](), environments, generators(5), first=3)
    np.testing.assert_array_equal(at_once, in_turn)


def check_permuting_tasks_permutes_results(name, model):
    environments = small_environments(model)
    order = [3, 0, 4, 2, 1]
    plain = play_tasks(POLICIES[name](), environments, generators(5))
    rngs = generators(5)
    permuted = play_tasks(
        POLICIES[name](), [environments[m] for m in order], [rngs[m] for m in order]
    )
    np.testing.assert_allclose(permuted, plain[order], rtol=1e-9)


def check_regret_grows_from_nothing_where_tasks_are_activated_and_slower_than_at_random(
    name, model
):
    environments = small_environments(model, horizon=600)
    found = play_tasks(POLICIES[name](), environments, generators(5))
    assert found.shape == (5, 600)
    lost = np.diff(found, axis=1, prepend=0)
    assert (lost >= 0).all()
    for own, environment in zip(lost, environments, strict=True):
        assert not own[~environment.active].any()
    at_random = sum((w.means.max(axis=1) - w.means.mean(axis=1)).sum() for w in environments)
    assert 0 < found[:, -1].sum() < 0.4 * at_random
    np.testing.assert_array_equal(found, play_tasks(POLICIES[name](), environments, generators(5)))


def check_tasks_that_are_never_activated_change_nothing(name, model):
    environments = small_environments(model, activation=(0.9, 0.8, 0.0, 0.0), horizon=200)
    found = play_tasks(POLICIES[name](), environments, generators(5, 4))
    assert not found[2:].any()
    np.testing.assert_array_equal(
        found[:2], play_tasks(POLICIES[name](), environments[:2], generators(5, 4)[:2])
    )


@EACH
def test_states_are_never_written_to(name):
    policy = POLICIES[name]()
    before = policy.init(2, 1, 3)
    rng = np.random.default_rng(0)
    contexts = [rng.normal(size=(n, 2, 3)) for n in (9, 12)]
    actions = policy.choose(before, contexts, generators(0, 2))
    rewards = [rng.normal(size=len(own)) for own in actions]
    seen = policy.update(before, contexts, actions, rewards)
    kept = tuple(
        TaskState(s.coefs.copy(), type(s.fresh)(*map(np.copy, s.fresh)), s.past) for s in seen
    )
    after = policy.close_batch(seen)
    assert_same_state(seen, kept)
    assert_same_state(before, policy.init(2, 1, 3))
    assert all(own.coefs.any() and not len(own.fresh.y) for own in after)


@pytest.mark.parametrize("name", WITH_HISTORY)
def test_all_history_helps(name):
    environments = small_environments("C", activation=(0.9,) * 8, horizon=1000, dim=6)
    batch, everything = (
        play_tasks(POLICIES[name](history=history), environments, generators(5, 8))[:, -1].sum()
        for history in ("batch", "all")
    )
    assert everything < batch


@pytest.mark.parametrize("model", ["C", "P"])
def test_collaboration_pays_in_the_papers_simulation(model):
    # Section 4.1: (d, s, M, K) = (30, 2, 20, 3), sigma = 0.5. Over ten other trials
    # Ten trials of 5000 rounds had 0.63 (C) and 0.65 (P).
    ratios = []
    for trial in range(2):
        p = np.random.default_rng([trial, 1]).uniform(size=20)
        environments = sparse_environments(
            np.random.default_rng(trial), model, activation=p, horizon=5000
        )
        ours, ols = (
            play_tasks(policy, environments, generators(trial, 20))[:, -1].sum()
            for policy in (molar_bandit(sigma=0.5), ols_bandit())
        )
        ratios.append(ours / ols)
    assert np.mean(ratios) <= 0.75
