"""Attacks of a server's operator on a site with a budget, which succeed where it has none."""

import math

import numpy as np
import pytest

from engram.core.slots import flat
from engram.wire.wire import CLIENTS
from tests.sites.budgets import epsilon_of, evaluate, numbers, policy, told, train
from tests.support import initial_model, small_of_any, train_clients, trainer

pytestmark = pytest.mark.usefixtures("afresh")

METHOD = {"method": "fedavg", "hidden": "64"}


def exact(**settings):
    """The update of client 0 that no noise hides."""
    t = trainer(small_of_any(**METHOD | {"clip": 0.5} | settings))
    model = initial_model(t)
    done = train_clients(t, model, [0], server_round=1, durable=0)
    return in_a_row(done.slots) - in_a_row(model), in_a_row(model)


def in_a_row(slots):
    return np.concatenate([leaf.numpy().ravel() for leaf in flat(slots).values()])


def until_refused(answer, most=400):
    """All answers, each to a message of its own, until one is refused."""
    found = []
    for number in range(most):
        reply = answer(nonce=str(number))
        if reply.error:
            assert "privacy budget is spent" in told(reply)
            return found
        found.append(reply)
    raise AssertionError("nothing is counted")


def cosine(one, other):
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def largest_mu(epsilon):
    """The largest sensitivity within epsilon, by bisection with scipy."""
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of([middle**2]) <= epsilon else (low, middle)
    return low


@pytest.mark.parametrize("noise", [3.0, 12.0])
def test_the_same_round_is_asked_again_and_again(tmp_path, noise):
    """The mean of all answers within the budget is as far off as the Gaussian bound says.

    n answers of n (2 / z)^2 <= mu^2 have a mean with noise of deviation z C / sqrt(n) >= 2 C / mu,
    and the update is at most C long; so their cosine is that of 1 and sqrt(1 + 4 d / mu^2), but for
    chance of deviation 1 / sqrt(d).
    """
    policy(tmp_path)
    update, start = exact()
    answers = until_refused(
        lambda nonce: train(tmp_path, nonce=nonce, noise_multiplier=noise, **METHOD)
    )
    mu = largest_mu(4.0)
    assert len(answers) == math.floor((mu * noise / 2) ** 2)
    mean = np.mean([numbers(reply) for reply in answers], axis=0) - start
    size = len(update)
    bound = 1 / math.sqrt(1 + 4 * size / mu**2)
    assert abs(cosine(mean, update)) < bound + 4 / math.sqrt(size)
    assert mean.std() > 2 * 0.5 / mu * (1 - 4 / math.sqrt(2 * size))


def test_models_are_scored_until_rows_are_known(tmp_path):
    """Any function of rows in a score's range: deviation sqrt(k) / mu of it in the mean."""
    policy(tmp_path)
    noise = {"noise_multiplier": 10.0}
    answers = until_refused(lambda nonce: evaluate(tmp_path, nonce=nonce, **METHOD, **noise))
    mu = largest_mu(4.0)
    assert len(answers) == math.floor((mu * 10.0 / 2) ** 2)
    columns = [name for name in answers[0].content[CLIENTS] if name.startswith("accuracy")]
    scores = np.array([[reply.content[CLIENTS][n][0] for n in columns] for reply in answers])
    # Of the mean of n answers; at least sqrt(k) ranges by the bound of mu.
    deviation = scores.std(axis=0, ddof=1).mean() / math.sqrt(len(answers))
    everything = [n for n in answers[0].content[CLIENTS] if "accuracy" in n]
    expected = math.sqrt(len(everything)) / mu
    assert deviation == pytest.approx(expected, rel=5 / math.sqrt(2 * scores.size))
    others = [n for n in answers[0].content[CLIENTS] if "loss" in n]
    assert others
    assert all(math.isnan(reply.content[CLIENTS][n][0]) for reply in answers for n in others)
