"""The contract of all policies of multitask bandits, and the gain by collaboration."""

import copy

import numpy as np
import pytest

from engram.tables.bandits.environments import regret, sparse_environments
from engram.tables.bandits.policies import close_tasks, molar_bandit, ols_bandit, play_tasks
from tests.samples import entry
from tests.tables.bandits import (
    POLICIES,
    WITH_HISTORY,
    assert_same_state,
    generators,
    seen,
    small_environments,
)


def round_by_round(policy, environments, rngs, first):
    """Plays as ``play_tasks`` should, with a call for each round."""
    model = environments[0]
    states = [policy.init(model.parameters, model.contexts.shape[2])] * len(environments)
    lost, end = [], first
    for t in range(len(model.active)):
        now = [environment.rounds(t, t + 1) for environment in environments]
        played = [policy.play(*task) for task in zip(states, now, rngs, strict=True)]
        states = [state for state, *_ in played]
        lost.append([regret(w, arms)[0] for w, (_, arms, _) in zip(now, played, strict=True)])
        if t + 1 == end:
            states, end = close_tasks(policy, states), 2 * end
    return np.cumsum(lost, axis=0).T


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_meets_the_contract(name):
    policy = POLICIES[name]()
    for model in ("C", "P"):
        for check in (
            check_a_batch_at_once_is_round_by_round,
            check_permuting_tasks_permutes_results,
            check_regret_grows_where_tasks_are_activated_and_slower_than_at_random,
            check_tasks_that_are_never_activated_change_nothing,
        ):
            with entry(model, check):
                check(policy, model)
    check_states_are_never_written_to(policy)
    if name in WITH_HISTORY:
        check_all_history_helps(POLICIES[name])


def check_a_batch_at_once_is_round_by_round(policy, model):
    environments = small_environments(model, horizon=150)
    at_once = play_tasks(policy, environments, generators(5), first=3)
    in_turn = round_by_round(policy, environments, generators(5), first=3)
    np.testing.assert_array_equal(at_once, in_turn)


def check_permuting_tasks_permutes_results(policy, model):
    environments, order, rngs = small_environments(model), [3, 0, 4, 2, 1], generators(5)
    plain = play_tasks(policy, environments, generators(5))
    permuted = play_tasks(policy, [environments[m] for m in order], [rngs[m] for m in order])
    np.testing.assert_allclose(permuted, plain[order], rtol=1e-9)


def check_regret_grows_where_tasks_are_activated_and_slower_than_at_random(policy, model):
    environments = small_environments(model, horizon=600)
    found = play_tasks(policy, environments, generators(5))
    lost = np.diff(found, axis=1, prepend=0)
    assert found.shape == (5, 600)
    assert (lost >= 0).all()
    for own, environment in zip(lost, environments, strict=True):
        assert not own[~environment.active].any()
    at_random = sum((w.means.max(axis=1) - w.means.mean(axis=1)).sum() for w in environments)
    assert 0 < found[:, -1].sum() < 0.4 * at_random


def check_tasks_that_are_never_activated_change_nothing(policy, model):
    environments = small_environments(model, activation=(0.9, 0.8, 0.0, 0.0), horizon=200)
    found = play_tasks(policy, environments, generators(5, 4))
    assert not found[2:].any()
    few = play_tasks(policy, environments[:2], generators(5, 4)[:2])
    np.testing.assert_array_equal(found[:2], few)


def check_states_are_never_written_to(policy):
    rng = np.random.default_rng(0)
    before = seen(policy, [(rng.normal(size=(n, 3)), rng.normal(size=n)) for n in (9, 12)])
    kept = copy.deepcopy(before)
    after = close_tasks(policy, before)
    assert_same_state(before, kept)
    assert all(own.coefs.any() and not len(own.fresh.y) for own in after)


def check_all_history_helps(policy):
    environments = small_environments("C", activation=(0.9,) * 8, horizon=1000, dim=6)
    batch, everything = (
        play_tasks(policy(history=history), environments, generators(5, 8))[:, -1].sum()
        for history in ("batch", "all")
    )
    assert everything < batch


@pytest.mark.parametrize("model", ["C", "P"])
def test_collaboration_pays_in_the_papers_simulation(model):
    # Section 4.1: (d, s, M, K) = (30, 2, 20, 3), sigma = 0.5. Ten trials of 5000 rounds had ratios
    # of 0.63 (C) and 0.65 (P).
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
