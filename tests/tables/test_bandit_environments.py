"""Environments that bandits play in, and the batches in which they do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.tables.bandits.environments import (
    TaskEnvironment,
    regret,
    replay,
    simulate,
    sparse_environments,
)
from engram.tables.bandits.policies import Batch, batches
from engram.tables.site import Rows


def environments(model, activation):
    return sparse_environments(np.random.default_rng(0), model, activation=activation, horizon=100)


# --- Batches ---------------------------------------------------------------------------------


def test_batches_are_those_of_algorithm_2():
    assert list(batches(3, 20)) == [
        Batch(0, 3, True),  # H_0 = [3]
        Batch(3, 6, True),  # 2^0 * 3 < t <= 2^1 * 3
        Batch(6, 12, True),
        Batch(12, 20, False),  # cut at T, before 24: no estimates follow
    ]
    assert list(batches(1, 4)) == [Batch(0, 1, True), Batch(1, 2, True), Batch(2, 4, True)]
    assert list(batches(7, 5)) == [Batch(0, 5, False)]


@given(st.integers(1, 20), st.integers(1, 400))
def test_batches_cover_all_rounds_once_and_double(first, horizon):
    found = list(batches(first, horizon))
    assert [t for batch in found for t in range(batch.start, batch.stop)] == list(range(horizon))
    assert all(batch.stop == first * 2**q for q, batch in enumerate(found) if batch.full)
    assert all(batch.full for batch in found[:-1])


# --- Worlds ----------------------------------------------------------------------------------


def test_a_simulated_world_pays_what_its_parameters_say():
    coefs = np.array([[2.0, -1.0], [0.5, 3.0], [0.0, 1.0]])
    environment = simulate(
        np.random.default_rng(0), coefs, arms=3, activation=0.6, horizon=4000, sigma=0.25
    )
    n = environment.active.sum()
    assert environment.contexts.shape == (n, 1, 2)
    assert environment.parameters == 3
    np.testing.assert_allclose(environment.means, environment.contexts[:, 0] @ coefs.T)
    noise = environment.rewards - environment.means
    np.testing.assert_allclose(noise, noise[:, :1] + np.zeros(3), atol=1e-12)  # one a round
    # Standard errors: 0.6 +- sqrt(0.24 / 4000), 0.25 +- 0.25 / sqrt(2 * 2400), 1 +- 1 / 69.
    assert n / 4000 == pytest.approx(0.6, abs=0.03)
    assert noise[:, 0].std() == pytest.approx(0.25, abs=0.015)
    assert environment.contexts.std() == pytest.approx(1, abs=0.05)


def test_under_model_c_each_arm_has_a_context():
    rng, coefs = np.random.default_rng(0), np.array([[2.0, -1.0]])
    environment = simulate(rng, coefs, arms=3, activation=1.0, horizon=5, sigma=0.0)
    assert (environment.contexts.shape, environment.parameters) == ((5, 3, 2), 1)
    np.testing.assert_array_equal(environment.rewards, environment.contexts @ [2.0, -1.0])


def test_the_environment_of_a_task_does_not_depend_on_the_others():
    for model in ("C", "P"):
        few, many = (environments(model, p) for p in ((0.9, 0.3), (0.9, 0.3, 0.5)))
        for one, other in zip(few, many, strict=False):
            np.testing.assert_array_equal(one.active, other.active)
            np.testing.assert_array_equal(one.contexts, other.contexts)
        assert not np.array_equal(many[0].contexts[:30], many[1].contexts[:30])


def test_replay_reads_each_row_once_at_most_and_then_ends():
    rows = Rows(np.arange(22.0).reshape(11, 2), np.arange(11.0) ** 2)
    rng, reference = np.random.default_rng(0), np.array([1.0, -3.0])
    environment = replay(rng, rows, reference, activation=0.5, horizon=40, arms=2)
    # 11 rows: five pairs, though some twenty rounds were drawn.
    assert environment.active.sum() == 5
    read = (environment.contexts[..., 0] / 2).astype(int)
    assert len(set(read.ravel())) == 10
    np.testing.assert_array_equal(environment.contexts, rows.x[read])
    np.testing.assert_array_equal(environment.rewards, rows.y[read])
    np.testing.assert_allclose(environment.means, rows.x[read] @ reference)
    long = replay(rng, rows, reference, activation=1.0, horizon=10, arms=3)
    assert long.active.tolist() == [True] * 3 + [False] * 7


def test_regret_by_hand():
    # Rounds 1 and 3 of three. Best arms: 2 (of 0, 5, 6) and 0 (of 4, -1, 3).
    means = np.array([[0.0, 5.0, 6.0], [4.0, -1.0, 3.0]])
    active = np.array([True, False, True])
    environment = TaskEnvironment(active, np.zeros((2, 3, 1)), means, means + 100)
    assert regret(environment, np.array([1, 2])).tolist() == [1.0, 0.0, 1.0]
    assert regret(environment, np.array([2, 1])).tolist() == [0.0, 0.0, 5.0]


def test_rounds_of_a_world():
    environment = environments("C", (0.9, 0.3))[1]
    parts = [environment.rounds(a, b) for a, b in ((0, 1), (1, 6), (6, 6), (6, 100))]
    assert [len(part.active) for part in parts] == [1, 5, 0, 94]
    for whole, split in zip(environment, zip(*parts, strict=True), strict=True):
        np.testing.assert_array_equal(whole, np.concatenate(split))
