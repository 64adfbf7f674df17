"""Projections: by hand, against cvxpy, and by what a nearest point must satisfy."""

from itertools import product

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.online.domains import ball, box, simplex
from engram.online.steps import BALL, BOX, SIMPLEX, pull_in_norm
from tests.samples import entry

# cvxpy says so where a solver has stopped short of the 1e-12 that it is asked for.
pytestmark = pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
EXACT = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}
LOW, HIGH = np.array([-1.0, 0.0, 0.5, -2.0, -0.3]), np.array([0.2, 0.4, 3.0, -1.0, 0.3])
DOMAINS = {
    "ball": ball(5, 1.5, np.array([0.3, -0.2, 0.1, 0.0, 2.0])),
    "box": box(LOW, HIGH),
    "simplex": simplex(5),
    # {x >= anchor, sum x = 1.5}: a simplex in other units, as the ensemble has it.
    "moved simplex": simplex(5).relative(np.array([0.2, 0.1, 0.0, 0.3, 0.4]), 0.5),
}


def metric(rng, dim, condition):
    """U with eigenvalues from 1 to ``condition``."""
    turn = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    u = turn * np.geomspace(1, condition, dim) @ turn.T
    return (u + u.T) / 2


def projected_in_norm(domain, y, u):
    """The point nearest to y in the norm sqrt(v' U v)."""
    nearest = y.copy()
    pull_in_norm(*domain, nearest, u, np.linalg.inv(u), domain.project(y))
    return nearest


def nearest(domain, y, u):
    """What cvxpy finds."""
    x = cp.Variable(domain.dim)
    if domain.kind == BOX:
        inside = [x >= domain.anchor, x <= domain.top]
    elif domain.kind == SIMPLEX:
        inside = [x >= domain.anchor, cp.sum(x) == domain.size]
    else:
        inside = [cp.norm(x - domain.anchor) <= domain.size]
    root = np.linalg.cholesky(u).T
    problem = cp.Problem(cp.Minimize(cp.sum_squares(root @ (x - y))), inside)
    problem.solve(cp.CLARABEL, **EXACT)
    return _closer(domain, y, root, x.value) if domain.kind == BALL else x.value


def _closer(domain, y, root, x):
    """What cvxpy finds when it starts from there, in units of 1e-4.

    On a sphere an objective that is exact to 1e-12 leaves the point inexact by the root of that.
    """
    unit, move, offset = 1e-4, cp.Variable(domain.dim), x - domain.anchor
    change = unit * cp.sum_squares(root @ move) + 2 * (root.T @ root @ (x - y)) @ move
    room = (domain.size**2 - offset @ offset) / unit
    inside = [unit * cp.sum_squares(move) + 2 * offset @ move <= room]
    cp.Problem(cp.Minimize(change), inside).solve(cp.CLARABEL, **EXACT)
    return x + unit * move.value


# --- By hand ---------------------------------------------------------------------------------


def test_the_nearest_point():
    for domain, y, expected in [
        # (3, 4) from the center: 2 of its length 5.
        (ball(2, 2.0, np.array([1.0, 2.0])), [4.0, 6.0], [2.2, 3.6]),
        (ball(2, 2.0, np.array([1.0, 2.0])), [1.5, 3.0], [1.5, 3.0]),
        (box(np.array([0.0, -1.0]), np.array([1.0, 4.0])), [1.7, -3.0], [1.0, -1.0]),
        # 0.9 + 0.5 - 2 * 0.2 = 1, and -1 and 0.1 are below 0.2.
        (simplex(4), [0.9, -1.0, 0.5, 0.1], [0.7, 0.0, 0.3, 0.0]),
        (simplex(3), [0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
        (simplex(3), [9.0, 1.0, 2.0], [1.0, 0.0, 0.0]),
    ]:
        with entry(domain, y):
            assert domain.project(np.array(y)) == pytest.approx(np.array(expected), abs=1e-15)


def test_the_nearest_point_in_a_norm():
    # min 4 (x_1 - 3)^2 + (x_2 - 4)^2 with x_1 + x_2 = 1: 4 (x_1 - 3) = x_2 - 4 gives x_1 = 9/5,
    # x_2 = -4/5; with x >= 0 therefore (1, 0).
    u = np.diag([4.0, 1.0])
    assert projected_in_norm(simplex(2), np.array([3.0, 4.0]), u).tolist() == [1.0, 0.0]
    # And from (0.6, 1.4): 4 (x_1 - 0.6) = x_2 - 1.4 gives x_1 = 2/5.
    found = projected_in_norm(simplex(2), np.array([0.6, 1.4]), u)
    assert found == pytest.approx(np.array([0.4, 0.6]), abs=1e-15)
    # U = [[2, 1], [1, 2]], y = (3, 0), x_1 <= 1: then x_2 minimizes 2 x_2^2 - 4 x_2, at 1.
    u = np.array([[2.0, 1.0], [1.0, 2.0]])
    domain = box(np.array([-1.0, -1.0]), np.array([1.0, 5.0]))
    found = projected_in_norm(domain, np.array([3.0, 0]), u)
    assert found == pytest.approx(np.array([1.0, 1.0]), abs=1e-15)


def test_sizes_and_middles():
    assert DOMAINS["ball"].diameter == 3.0
    assert box(np.zeros(2), np.array([3.0, 4.0])).diameter == 5.0
    assert simplex(4).diameter == pytest.approx(np.sqrt(2))  # between two corners
    assert simplex(4).center.tolist() == [0.25] * 4
    assert DOMAINS["box"].center.tolist() == ((LOW + HIGH) / 2).tolist()


# --- Against cvxpy ---------------------------------------------------------------------------


def test_no_worse_than_cvxpy_in_ill_conditioned_norms():
    draws = {name: np.random.default_rng(1) for name in DOMAINS}
    for (name, domain), condition in product(DOMAINS.items(), (1e6, 1e8, 1e10)):
        with entry(name, condition):
            rng = draws[name]
            u = metric(rng, 5, condition)
            y = domain.center + rng.normal(size=5) * 2
            ours, theirs = projected_in_norm(domain, y, u), domain.project(nearest(domain, y, u))
            assert domain.contains(ours)
            distance, other = ((x - y) @ u @ (x - y) for x in (ours, theirs))
            assert distance <= other * (1 + 1e-9)


# --- What must hold --------------------------------------------------------------------------

COORDINATES = st.lists(st.floats(-5, 5), min_size=5, max_size=5).map(np.array)


def corners(domain):
    """Points whose hull is the domain, or for a ball has its center and many of its points."""
    if domain.kind == BOX:
        mesh = np.meshgrid(*np.stack([domain.anchor, domain.top], axis=1))
        return np.stack([side.ravel() for side in mesh], axis=1)
    if domain.kind == SIMPLEX:
        return domain.anchor + np.eye(domain.dim) * (domain.size - domain.anchor.sum())
    around = np.random.default_rng(2).normal(size=(200, domain.dim))
    return domain.anchor + domain.size * around / np.linalg.norm(around, axis=1, keepdims=True)


@pytest.mark.parametrize("name", DOMAINS)
@given(COORDINATES, st.integers(0, 99), st.sampled_from([1.0, 30.0, 1e4]))
def test_no_point_of_the_domain_is_on_the_way_to_y(name, y, seed, condition):
    # x is nearest to y if and only if <y - x, z - x>_U <= 0 for every z of the domain.
    domain = DOMAINS[name]
    u = metric(np.random.default_rng(seed), 5, condition)
    x = projected_in_norm(domain, y, u)
    assert domain.contains(x)
    assert np.max((corners(domain) - x) @ u @ (y - x)) <= 1e-8 * condition


@pytest.mark.parametrize("name", DOMAINS)
@given(COORDINATES, COORDINATES)
def test_projections_stay_inside_and_bring_points_together(name, y, z):
    domain = DOMAINS[name]
    x, w = domain.project(y), domain.project(z)
    assert domain.project(x) == pytest.approx(x, abs=1e-14)
    assert np.linalg.norm(x - w) <= np.linalg.norm(y - z) + 1e-12
    assert np.linalg.norm(x - w) <= domain.diameter + 1e-12
    assert projected_in_norm(domain, y, 3 * np.eye(5)) == pytest.approx(x, abs=1e-9)


def test_in_other_coordinates_it_is_the_same_set():
    origin, unit = np.array([0.3, -1.0, 2.0, 0.1, 0.4]), 0.37
    y = np.array([0.5, 0.9, -0.3, -4.0, 0.1])
    for name, domain in DOMAINS.items():
        with entry(name):
            other = domain.relative(origin, unit)
            moved = origin + unit * other.project((y - origin) / unit)
            assert moved == pytest.approx(domain.project(y), abs=1e-14)
            assert other.diameter == pytest.approx(domain.diameter / unit)
            assert origin + unit * other.center == pytest.approx(domain.center, abs=1e-14)
            assert domain.contains(domain.center)
            assert all(domain.contains(corner) for corner in corners(domain))
            assert not domain.contains(domain.center + 3)


def test_what_is_no_domain_is_refused():
    for make, told in [
        (lambda: ball(0, 1.0), "dim must be at least 1, got 0"),
        (lambda: ball(2, 0.0), "radius must be finite and positive, got 0.0"),
        (lambda: ball(2, np.nan), "radius must be finite and positive, got nan"),
        (lambda: ball(2, np.inf), "radius must be finite and positive, got inf"),
        (lambda: ball(2, 1.0, np.zeros(3)), r"center's shape must be \(2,\), got \(3,\)"),
        (lambda: ball(2, 1.0, np.array([0, np.inf])), "center must be finite, got inf"),
        (
            lambda: box(np.zeros(2), np.zeros(2)),
            "high - low must be above 0 in a coordinate, or D is 0",
        ),
        (
            lambda: box(np.zeros(2), np.array([1.0, -1])),
            "high - low must be at least 0 everywhere, got -1.0",
        ),
        (lambda: box(np.zeros(2), np.full(2, 1e-200)), "diameter must be finite and pos.*got 0.0"),
        (lambda: box(np.full(2, -1e308), np.full(2, 1e308)), "diameter must be finite.*got inf"),
        (lambda: ball(2, 1e308), "diameter must be finite and positive, got inf"),
        (lambda: box(np.zeros(2), np.array([1.0, np.nan])), "high must be finite"),
        (lambda: box(np.zeros(2), np.ones(3)), r"high's shape must be \(2,\), got \(3,\)"),
        (lambda: box(np.zeros(0), np.ones(0)), r"low's shape must be"),
        (lambda: simplex(1), "dim must be at least 2, or the domain is a point, got 1"),
    ]:
        with entry(make, told):
            with pytest.raises(ValueError, match=told) as refusal:
                make()
            assert "\n" not in str(refusal.value)
