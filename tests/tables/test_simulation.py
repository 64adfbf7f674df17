"""Simulated tasks: what the paper says of them, and that chance is where it should be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.tables.simulation import disparate_sizes, sparse_parameters, spread_root
from tests.samples import entry


def generator(seed=0):
    return np.random.default_rng(seed)


# --- Parameters ------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(3, 9), st.integers(4, 12), st.integers(0, 4))
def test_parameters_lie_on_the_sphere_and_differ_in_few_coordinates(seed, tasks, dim, differing):
    found = sparse_parameters(generator(seed), tasks, dim, differing)
    assert found.shape == (tasks, dim)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-12)
    shared = sparse_parameters(generator(seed), 1, dim, 0)[0]  # drawn before all else
    moved = found != shared
    assert (moved.sum(axis=1) <= differing).all()
    if differing > 1:  # a single one may keep its value
        assert (moved.sum(axis=1) == differing).all()


def test_tasks_differ_in_places_of_their_own_and_all_come_up():
    found = sparse_parameters(generator(), 200, 6, 2)
    assert np.array_equal(found[:3], sparse_parameters(generator(), 3, 6, 2))
    moved = found != np.median(found, axis=0)
    assert len({tuple(own) for own in moved}) == 15  # of two among six
    np.testing.assert_allclose(moved.mean(axis=0), 2 / 6, atol=0.1)


def test_one_differing_coordinate_is_the_opposite_or_as_it_was():
    found = sparse_parameters(generator(), 60, 3, 1)
    shared = sparse_parameters(generator(), 1, 3, 0)[0]
    np.testing.assert_allclose(np.abs(found), np.abs(np.tile(shared, (60, 1))), atol=1e-12)
    opposite = (np.sign(found) != np.sign(shared)).any(axis=1)
    assert 15 < opposite.sum() < 45


# --- Sizes -----------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(3, 300), st.integers(0, 1000))
def test_sizes_have_the_mean_and_the_minimum(seed, tasks, least, more):
    sizes = disparate_sizes(generator(seed), tasks, least + more, least)
    assert sizes.shape == (tasks,)
    assert sizes.min() >= least
    assert abs(sizes.mean() - (least + more)) <= 0.5


def test_sizes_are_those_of_the_papers_vectors_that_leave_no_task_too_few():
    # By rejection: uniform on the simplex, kept if all of three tasks have 150 rows of 1500.
    z = 1500 * generator(1).dirichlet(np.ones(3), size=40_000)
    kept = z[z.min(axis=1) >= 150]
    rng = generator(2)
    found = np.array([disparate_sizes(rng, 3, 500, 150) for _ in range(8000)])
    for statistic in (np.min, np.max, np.median):
        one, other = statistic(found, axis=1), statistic(kept, axis=1)
        # Four standard errors of about 250 / sqrt(8000); without the condition, 90 and more off.
        assert one.mean() == pytest.approx(other.mean(), abs=12)
        assert one.std() == pytest.approx(other.std(), abs=12)


# --- Rows ------------------------------------------------------------------------------------


def test_covariances_have_the_papers_eigenvalues_and_directions_of_their_own():
    for dim in [1, 2, 7]:
        with entry(dim):
            one, other = (spread_root(generator(seed), dim) for seed in (0, 1))
            for root in (one, other):
                values = np.linalg.eigvalsh(root.T @ root)
                np.testing.assert_allclose(values, 1 + 4 * np.arange(dim) / dim, atol=1e-12)
            if dim > 1:
                assert np.abs(one.T @ one - other.T @ other).max() > 0.1


def test_arguments_out_of_range_are_refused():
    for draw, values, message in [
        (sparse_parameters, (0, 4, 1), "tasks must be at least 1, got 0"),
        (sparse_parameters, (3, 4, 5), r"differing must be in \[0, 4\], got 5"),
        (sparse_parameters, (3, 4, -1), r"differing must be in \[0, 4\], got -1"),
        (disparate_sizes, (3, 11, 12), "mean must be at least 12, the fewest .*, got 11"),
    ]:
        with entry(draw, values), pytest.raises(ValueError, match=message):
            draw(generator(), *values)
