"""Multitask bandits: Algorithms 2 and 5 in plain numpy, reductions, closed forms, refusals."""

import numpy as np
import pytest

from engram.tables.bandits.policies import (
    batches,
    lasso_bandit,
    molar_bandit,
    ols_bandit,
    play_tasks,
    robust_multitask_bandit,
    trace_norm_bandit,
)
from engram.tables.bandits.site import TaskBandit
from engram.tables.shrinkage import combine, personalize
from engram.tables.site import Rows, estimate_site
from tests.samples import entry
from tests.tables.bandits import (
    MODELS,
    assert_same_state,
    coefficients,
    generators,
    small_environments,
)


def site(method=None, history="batch", c_rows=1.0):
    return TaskBandit(method or molar_bandit().method, history, c_rows)


def fed(own, state, n, seed=0, arms=3):
    """A state that has seen n rounds more, and those."""
    rng = np.random.default_rng(seed)
    parameters, dim = state.coefs.shape
    contexts = rng.normal(size=(n, arms if parameters == 1 else 1, dim))
    actions, rewards = rng.integers(0, arms, n), rng.normal(size=n)
    return own.observe(state, contexts, actions, rewards), (contexts, actions, rewards)


# --- The algorithms in plain numpy ---------------------------------------------------------


def median(values, weights):
    """A point with half of the weight on either side; the midpoint where there are many."""
    order = np.argsort(values)
    below = np.cumsum(weights[order]) / weights.sum()
    ends = [values[order][np.searchsorted(below, half)] for half in (0.5 - 1e-12, 0.5 + 1e-12)]
    return sum(ends) / 2


def molar(rows):
    """Algorithm 1 with known noise, of ``{task: (x, y)}``."""
    inverses = {m: np.linalg.inv(x.T @ x) for m, (x, _) in rows.items()}
    own = {m: inverses[m] @ x.T @ y for m, (x, y) in rows.items()}
    sizes = {m: len(y) for m, (_, y) in rows.items()}
    weights, every = np.array([*sizes.values()]) / 0.5**2, np.array([*own.values()])
    shared = np.array([median(column, weights) for column in every.T])
    found = {}
    for m, coef in own.items():
        gamma = np.log(min(sum(sizes.values()) / sizes[m], len(shared))) * 0.5
        near = np.abs(shared - coef) <= gamma * np.sqrt(np.diag(inverses[m]))
        found[m] = np.where(near, shared, coef)
    return found


def played_plainly(environments, told):
    """Returns the regret, and how many choices were no ties; of ties, what was told is taken."""
    tasks, horizon = told.shape
    dim, arms = environments[0].contexts.shape[2], environments[0].means.shape[1]
    models = 1 if environments[0].contexts.shape[1] == arms else arms
    coefs, seen = np.zeros((tasks, models, dim)), [0] * tasks
    rows = [[[] for _ in range(models)] for _ in range(tasks)]
    each, chosen, end = np.zeros((tasks, horizon)), 0, 1
    step = np.diff(told, axis=1, prepend=0)
    for t in range(1, horizon + 1):
        for m, env in enumerate(environments):
            if not env.active[t - 1]:
                continue
            i, x = seen[m], env.contexts[seen[m]]
            seen[m] += 1
            scores = (x * coefs[m]).sum(1)
            losses = env.means[i].max() - env.means[i]
            tie = (scores > scores.max() - 1e-9).sum() > 1
            arm = int(np.abs(losses - step[m, t - 1]).argmin() if tie else scores.argmax())
            chosen += not tie
            each[m, t - 1] = losses[arm]
            of = 0 if models == 1 else arm
            rows[m][of].append((x[arm if models == 1 else 0], env.rewards[i, arm]))
        if t == end:
            end *= 2
            for k in range(models):
                enough = [m for m in range(tasks) if len(rows[m][k]) >= dim + 2]
                data = {m: tuple(map(np.array, zip(*rows[m][k], strict=True))) for m in enough}
                for m, coef in molar(data).items() if data else ():
                    coefs[m, k], rows[m][k] = coef, []
    return each.cumsum(1), chosen


@MODELS
def test_the_regret_is_that_of_the_algorithm(model):
    environments = small_environments(model, horizon=400)
    found = play_tasks(molar_bandit(sigma=0.5), environments, generators(0))
    expected, chosen = played_plainly(environments, found)
    assert chosen > 800
    np.testing.assert_allclose(found, expected, atol=1e-8)


# --- One task --------------------------------------------------------------------------------


def test_ties_are_broken_at_random_among_the_best():
    state = site().init(3, 1)._replace(coefs=np.array([[2.0], [1.0], [2.0]]))
    contexts = np.ones((900, 1, 1))
    counts = np.bincount(site().choose(state, contexts, np.random.default_rng(0)), minlength=3)
    assert counts[1] == 0
    assert counts[0] == pytest.approx(450, abs=75)  # five standard deviations
    first = site().choose(site().init(1, 1), np.ones((900, 3, 1)), np.random.default_rng(1))
    assert np.bincount(first) == pytest.approx(300, abs=70)


def test_how_many_rows_are_enough():
    for dim, c_rows, least in [(4, 1.0, 6), (4, 0.0, 6), (4, 1.6, 7), (1, 3.0, 3), (4, 3.0, 12)]:
        with entry(dim, c_rows, least):
            own = site(c_rows=c_rows)
            (few,) = own.close_batch(fed(own, own.init(1, dim), least - 1)[0])
            (enough,) = own.close_batch(fed(own, own.init(1, dim), least)[0])
            assert few is None
            assert enough.size == least


def test_a_task_with_too_few_rows_keeps_its_estimate_and_its_rows():
    own = site()
    state, _ = fed(own, own.init(1, 3)._replace(coefs=np.array([[1.0, 2.0, 3.0]])), 4)
    shared = combine([estimate_site(Rows(np.eye(6)[:, :3], np.arange(6.0)))])
    for reply in (None, shared):  # even if a server told it what the others found
        assert_same_state([own.receive(state, [reply])], [state])
    more, _ = fed(own, state, 5, seed=1)
    (sent,) = own.close_batch(more)
    assert sent.size == 9
    np.testing.assert_array_equal(sent.coef, estimate_site(more.fresh.of(0)).coef)
    assert_same_state([own.receive(more, [None])], [more])  # the answer was lost
    after = own.receive(more, [shared])
    assert (len(after.fresh.y), len(after.past.y)) == (0, 0)
    np.testing.assert_array_equal(after.coefs[0], personalize(sent, shared))


def test_history_is_for_the_tasks_own_step_alone():
    # J.3.5: estimates that are sent come from the newest batch, coefficients from all rows.
    own = site(history="all")
    state, _ = fed(own, own.init(1, 3), 20)
    shared = combine(own.close_batch(state))
    state, _ = fed(own, own.receive(state, [shared]), 30, seed=1)
    assert (len(state.past.y), len(state.fresh.y)) == (20, 30)
    (sent,) = own.close_batch(state)
    assert sent.size == 30
    np.testing.assert_array_equal(sent.coef, estimate_site(state.fresh.of(0)).coef)
    x, y = (np.concatenate([a, b]) for a, b in zip(state.past[:2], state.fresh[:2], strict=True))
    after = own.receive(state, [combine([sent])])
    expected = personalize(estimate_site(Rows(x, y)), combine([sent]))
    np.testing.assert_allclose(after.coefs[0], expected, rtol=1e-12)
    assert len(after.past.y) == 50


def test_under_model_p_each_arm_is_decided_by_its_own_rows():
    own = site(history="all")
    rng = np.random.default_rng(0)
    actions = np.repeat([0, 2, 1], [7, 9, 4])
    state = own.observe(own.init(3, 3), rng.normal(size=(20, 1, 3)), actions, rng.normal(size=20))
    sent = own.close_batch(state)
    assert [one and one.size for one in sent] == [7, None, 9]
    after = own.receive(state, [one and combine([one]) for one in sent])
    np.testing.assert_array_equal(after.coefs[0], sent[0].coef)
    np.testing.assert_array_equal(after.coefs[1], 0)
    assert after.fresh.parameter.tolist() == [1] * 4
    assert after.past.parameter.tolist() == [0] * 7 + [2] * 9


def test_a_coefficient_that_nobody_saw_is_0_and_one_that_others_saw_is_theirs():
    # Column 2 is 0 everywhere, column 1 in task 0: four exact equations say the rest.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 9, 3)) * [1.0, 1.0, 0.0]
    x[0, :, 1] = 0.0
    y = x @ [2.0, -3.0, 0.0]
    found = coefficients(molar_bandit(), zip(x, y, strict=True))
    np.testing.assert_allclose(found, [[2.0, -3.0, 0.0]] * 2, atol=1e-12)
    assert not coefficients(molar_bandit(), [(np.zeros((9, 3)), own) for own in y]).any()


# --- Reductions ------------------------------------------------------------------------------


@MODELS
@pytest.mark.parametrize("history", ["batch", "all"])
def test_without_shrinkage_it_is_the_ols_bandit(model, history):
    environments = small_environments(model)
    policies = molar_bandit(c=0.0, history=history), ols_bandit(history=history)
    policies += (molar_bandit(history=history),)
    one, other, shrunk = (play_tasks(p, environments, generators(1)) for p in policies)
    np.testing.assert_array_equal(one, other)
    assert not np.array_equal(one, shrunk)


def test_extreme_constants():
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(n, 4)), rng.normal(size=n)) for n in (40, 47, 54)]
    own = coefficients(ols_bandit(), rows)
    np.testing.assert_allclose(own, [np.linalg.lstsq(*task)[0] for task in rows], rtol=1e-9)
    for policy in (lasso_bandit, trace_norm_bandit, robust_multitask_bandit):
        assert np.abs(coefficients(policy(c=1e-9), rows) - own).max() < 1e-6
    assert np.abs(coefficients(lasso_bandit(c=0.0), rows) - own).max() < 1e-12
    for policy in (lasso_bandit, trace_norm_bandit):
        assert not coefficients(policy(c=1e3), rows).any()
    # Nobody is trimmed of three with a proportion of 0.1; of 0.4 the lowest and the highest are.
    for proportion, center in ((0.1, own.mean(axis=0)), (0.4, np.median(own, axis=0))):
        found = coefficients(robust_multitask_bandit(c=1e3, proportion=proportion), rows)
        np.testing.assert_allclose(found, [center] * 3, rtol=1e-9)
    shared = coefficients(molar_bandit(c=np.inf, sigma=1.0), rows)
    assert (shared == shared[0]).all()
    assert all(value in own[:, k] for k, value in enumerate(shared[0]))


def test_lasso_and_its_kin_have_the_lambda_of_the_paper():
    # For X'X = n I the solution moves X'y/n towards the center by lambda = c sqrt(ln d / n), and
    # no further than there.
    signs = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]], dtype=float)
    x = np.tile(signs, (4, 1))
    truth = np.array([[1.0, -0.2, 0.05, 0.4], [0.9, -0.1, 0.3, -1.0], [1.3, -0.3, 0.1, 0.2]])
    for policy, center in (
        (lasso_bandit(c=0.5), np.zeros(4)),
        (robust_multitask_bandit(c=0.5), truth.mean(axis=0)),
    ):
        found = coefficients(policy, [(x, x @ own) for own in truth])
        by = 0.5 * np.sqrt(np.log(4) / 16)
        gap = truth - center
        expected = center + np.sign(gap) * np.maximum(np.abs(gap) - by, 0)
        np.testing.assert_allclose(found, expected, atol=1e-6)


# --- Refusals --------------------------------------------------------------------------------


def test_what_cannot_be_is_refused():
    two = np.zeros((4, 2, 3))
    longer = [*small_environments("C", horizon=5), *small_environments("C", horizon=6)]
    for wrong, message in [
        (lambda: molar_bandit(c=-1.0), "c must be at least 0"),
        (lambda: lasso_bandit(c=-1.0), "c must be at least 0"),
        (lambda: trace_norm_bandit(c=0.0), "c must be positive"),
        (lambda: ols_bandit(history="none"), "history must be batch or all, got 'none'"),
        (lambda: molar_bandit(c_rows=-1.0), "c_rows must be at least 0"),
        (lambda: play_tasks(ols_bandit(), [], []), "tasks must be at least 1"),
        (lambda: site().init(0, 2), "parameters must be at least 1"),
        (lambda: list(batches(0, 5)), "first must be at least 1"),
        (lambda: small_environments("D"), "model must be C or P, got 'D'"),
        (lambda: small_environments("C", activation=(1.5,)), r"activation must be in \[0, 1\]"),
        (lambda: small_environments("C", horizon=0), "horizon must be at least 1"),
        (lambda: small_environments("C", sigma=-1.0), "sigma must be at least 0"),
        (
            lambda: site().choose(site().init(2, 3), two, np.random.default_rng()),
            r"contexts.shape must be \(n, 1, 3\), one for all arms, got \(4, 2, 3\)",
        ),
        (
            lambda: site().observe(site().init(1, 3), two, np.zeros(4, int), np.zeros(5)),
            r"rewards.shape must be \(n,\), got \(5,\)",
        ),
        (
            lambda: play_tasks(ols_bandit(), longer, generators(0, 10)),
            "numbers of rounds must be the same for all tasks",
        ),
    ]:
        with entry(wrong), pytest.raises(ValueError, match=message):
            wrong()
