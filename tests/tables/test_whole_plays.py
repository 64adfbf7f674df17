"""MOLARB's regret is that of Algorithms 2 and 5 in plain numpy, round by round."""

import numpy as np

from engram.tables.bandits.policies import molar_bandit, play_tasks
from tests.tables.bandits import MODELS, generators, small_environments

SIGMA = 0.5  # of the environments


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
    weights, every = np.array([*sizes.values()]) / SIGMA**2, np.array([*own.values()])
    shared = np.array([median(column, weights) for column in every.T])
    found = {}
    for m, coef in own.items():
        gamma = np.log(min(sum(sizes.values()) / sizes[m], len(shared))) * SIGMA
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
    found = play_tasks(molar_bandit(sigma=SIGMA), environments, generators(0))
    expected, chosen = played_plainly(environments, found)
    assert chosen > 800
    np.testing.assert_allclose(found, expected, atol=1e-8)
