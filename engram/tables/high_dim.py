"""Tasks with fewer rows than coefficients: Algorithm 3, and debiasing around its result.

Needs cvxpy: ``pip install -c constraints.txt -e '.[convex]'``.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from engram.core.arrays import Array
from engram.core.checks import require
from engram.tables.lasso import lasso, lasso_debiasing
from engram.tables.pooled import condense
from engram.tables.site import Rows

Reading = Literal["symmetric", "paper"]


class Bounds(NamedTuple):
    """Bounds on gradients in Algorithm 3."""

    own: Array  # lambda_m = c sigma sqrt(ln(n_m d) / n_m), shape (M,)
    total: float  # lambda_all = c sigma sqrt(ln(d) / n_[M]). (The paper writes p for d.)


class Transfer(NamedTuple):
    """The solution of Algorithm 3."""

    coef: Array  # the global parameter beta*, shape (d,)
    differences: Array  # delta_m, shape (M, d)


def transfer_bounds(sizes: Array, dim: int, scale: float) -> Bounds:
    """Returns the bounds for ``sizes`` n_m, shape (M,), d = ``dim``, and ``scale`` = c sigma."""
    own = scale * np.sqrt(np.log(sizes * dim) / sizes)
    return Bounds(own, float(scale * np.sqrt(np.log(dim) / sizes.sum())))


def high_dim(
    tasks: Sequence[Rows], sigma: float, *, c: float = 1.0, reading: Reading = "symmetric"
) -> tuple[Array, Array]:
    """Debiases each task's LASSO around the global parameter that ``transfer`` finds.

    Its strength is lambda_m (Proposition 3). See ``transfer`` for arguments and errors.

    Returns:
        Each task's coefficients, shape (M, d), and that parameter, shape (d,).
    """
    center = transfer(tasks, sigma, c=c, reading=reading).coef
    strengths = transfer_bounds(_sizes(tasks), len(center), c * sigma).own
    around = [lasso_debiasing(x, center, own) for x, own in zip(tasks, strengths, strict=True)]
    return np.stack(around), center


def transfer(
    tasks: Sequence[Rows],
    sigma: float,
    *,
    c: float = 1.0,
    radius: float = np.inf,
    reading: Reading = "symmetric",
) -> Transfer:
    """Estimates a sparse beta* by constrained l1-minimization (Algorithm 3).

    Minimizes ``lambda_all ||beta||_1 + sum_m w_m ||delta_m||_1`` with, for each task,
    ``||X'(X (beta + delta_m) - y)||_inf / n_m <= lambda_m``, and for all together
    ``||sum_m X'(X (beta + delta_m) - y)||_inf / n_[M] <= lambda_all``. Also
    ``||delta_m||_2 <= radius``. The paper prints the bounds without 1 / n_m; but lambda_m is of
    order 1 / sqrt(n_m) and X'epsilon of order sqrt(n_m), so that not even the true parameters would
    satisfy them.

    - ``symmetric``: each task has a delta, and ``w_m = lambda_m n_m / n_[M]``. The constraints are
      then the optimality conditions of ``sum_m ||X (beta + delta_m) - y||^2 / (2 n_[M])`` plus this
      penalty, as a Dantzig selector's constraints are those of the LASSO.
    - ``paper``: as printed, except for 1 / n_m. The first task has no delta and no bound of its
      own; ``w_m = lambda_m``; and ``||beta - beta_init||_1 <= 1 / lambda_1``, where beta_init is
      the first task's LASSO. A deviation of a single task costs sqrt(M) times as much in its delta
      as in beta, so beta absorbs it. The last bound has the inverse unit of beta: where Theorem 6
      holds it is too wide to matter, but if y has a small unit it keeps beta at beta_init. With d =
      200, n_m = 100, M = 10 this reading did worse than a LASSO for each task, and the symmetric
      one better.

    Args:
        tasks: Rows of each task, any number of them. Columns have about unit variance; for an
            intercept, center columns and y.
        sigma: Standard deviation of the noise, > 0. (Tasks with fewer rows than columns cannot
            estimate it.)
        c: Scale of the bounds, > 0.
        radius: b of Condition 11, in the unit of beta, at least 0. With infinity there is no bound,
            and the symmetric reading always has a solution.
        reading: The reading of the algorithm, see above.

    Raises:
        ImportError: If cvxpy is not installed.
        ValueError: If a value is out of range, there is no task, or no parameters satisfy
            the bounds.
    """
    require(len(tasks) > 0, "number of tasks", 0, "at least 1")
    require(sigma > 0, "sigma", sigma, "positive")
    require(c > 0, "c", c, "positive")
    require(radius >= 0, "radius", radius, "at least 0")
    require(reading in ("symmetric", "paper"), "reading", reading, "symmetric or paper")
    cp = _cvxpy()
    beta, deltas = cp.Variable(tasks[0].x.shape[1]), cp.Variable((len(tasks), tasks[0].x.shape[1]))
    problem = _problem(cp, tasks, sigma, c, reading, beta, deltas)
    if np.isfinite(radius):
        within = cp.norm2(deltas, axis=1) <= radius / sigma
        problem = cp.Problem(problem.objective, [*problem.constraints, within])
    problem.solve(solver=cp.CLARABEL)  # HiGHS, tried once, took 13 times as long
    solved = problem.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE)
    require(solved, "c", c, f"such that parameters are within the bounds ({problem.status})")
    return Transfer(sigma * beta.value, sigma * deltas.value)


def _problem(
    cp: Any, tasks: Sequence[Rows], sigma: float, c: float, reading: Reading, beta: Any, deltas: Any
) -> Any:
    """Returns Algorithm 3's in units of sigma: what solvers take for 0 has no unit."""
    sizes = _sizes(tasks)
    bounds, shares = transfer_bounds(sizes, beta.size, c), sizes / sizes.sum()
    gradients, constraints = [], []
    for m, rows in enumerate(tasks):
        x, y, counts = condense(rows).counted()
        root = np.sqrt(counts / counts.sum())
        x, y = root[:, None] * x, root * y / sigma
        residual = cp.Variable(len(y))  # of its own: X'X would be a larger matrix than X
        constraints.append(residual == x @ (beta + deltas[m]) - y)
        gradients.append(x.T @ residual)
    total = sum(share * gradient for share, gradient in zip(shares, gradients, strict=True))
    constraints.append(cp.norm_inf(total) <= bounds.total)
    within = [
        cp.norm_inf(gradient) <= own for gradient, own in zip(gradients, bounds.own, strict=True)
    ]
    if reading == "paper":
        weights = bounds.own
        init = lasso(tasks[0], sigma * bounds.own[0]) / sigma
        near = cp.norm1(beta - init) <= 1 / (sigma**2 * bounds.own[0])
        constraints += [*within[1:], deltas[0] == 0, near]
    else:
        weights = bounds.own * shares
        constraints += within
    lengths = cp.sum(cp.abs(deltas), axis=1)
    return cp.Problem(cp.Minimize(bounds.total * cp.norm1(beta) + weights @ lengths), constraints)


def _sizes(tasks: Sequence[Rows]) -> Array:
    return np.array([rows.counted()[2].sum() for rows in tasks])


def _cvxpy() -> Any:
    try:
        import cvxpy  # noqa: PLC0415 - optional, and slow to import
    except ImportError as error:
        raise ImportError(
            "Algorithm 3 needs cvxpy: pip install -c constraints.txt -e '.[convex]'"
        ) from error
    return cvxpy
