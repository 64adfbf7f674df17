"""The LASSO around zero or a shared center, and Algorithm 3 (Appendices E and J.1).

Algorithm 3 is for tasks with fewer rows than coefficients. It needs cvxpy:
``pip install -c constraints.txt -e '.[convex]'``.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from sklearn.linear_model import Lasso

from engram.core.arrays import Array, Bools
from engram.core.checks import require
from engram.tables.site import Rows, SiteEstimate, condense

LASSO_SCALE: Final = 0.05
"""c_lambda of a task's own LASSO, in units of sigma_m, as J.1 tuned it."""
DEBIASING_SCALE: Final = 0.35
"""c_lambda of RM's debiasing, in units of sigma_m, as J.1 tuned it."""

_TOLERANCE: Final = 1e-10  # of the duality gap, beside the square of what is to be explained
_PASSES: Final = 100_000  # over the coefficients, at most
_NIL: Final = 1e-12  # of the largest gradient: a strength lost in rounding


def lasso_strength(size: float, dim: int, scale: float) -> float:
    """Returns lambda_m = c_lambda sqrt(ln(d) / n_m) of Appendix J.1.

    n_m > 0, d >= 1 and c_lambda >= 0, in the unit of y, are ``size``, ``dim`` and ``scale``. A
    single coefficient is not penalized: ln(1) = 0.
    """
    return float(scale * np.sqrt(np.log(dim) / size))


def lasso(rows: Rows, strength: float) -> Array:
    """Minimizes ``||X b - y||^2 / (2 n) + strength ||b||_1``: ``lasso_debiasing`` around zero."""
    return lasso_debiasing(rows, np.zeros(rows.x.shape[1]), strength)


def debias(
    tasks: Sequence[Rows],
    sites: Sequence[SiteEstimate],
    center: Array,
    c: float,
    *,
    free: Bools | None = None,
) -> Array:
    """Fits each task's LASSO around ``center`` with lambda_m = c sigma_m sqrt(ln(d) / n_m).

    Of ``sites``, the tasks' own estimates, sizes and noise count; ``free`` is as for
    ``lasso_debiasing``. Returns shape (M, d).
    """
    require(c >= 0, "c", c, "at least 0")
    strengths = [lasso_strength(site.size, len(center), c * site.sigma) for site in sites]
    pairs = zip(tasks, strengths, strict=True)
    return np.stack([lasso_debiasing(rows, center, each, free=free) for rows, each in pairs])


def lasso_debiasing(
    rows: Rows, center: Array, strength: float, *, free: Bools | None = None
) -> Array:
    """Minimizes ``||X b - y||^2 / (2 n) + strength ||b - center||_1`` over b (Appendix E).

    A row of weight c counts as c rows, in the sum and in n. If columns are linearly dependent,
    several b may be minimal, and one of them is returned.

    Args:
        rows: The task's rows; there may be fewer rows than columns.
        center: Shape (d,), finite.
        strength: lambda_m, at least 0. With 0, or a value lost in rounding, it is least squares (of
            several solutions, the one nearest to ``center``). Above some finite value, the result
            is ``center``.
        free: Mask of the coefficients that are not penalized, such as an intercept, shape (d,);
            their values in ``center`` do not matter. None: all are penalized.

    Returns:
        Shape (d,).

    Raises:
        ValueError: If the strength is negative, or a shape is wrong.
    """
    x, y, counts = rows.counted()
    shape = (x.shape[1],)
    require(strength >= 0, "strength", strength, "at least 0")
    require(center.shape == shape, "center.shape", center.shape, str(shape))
    free = np.zeros(shape, dtype=bool) if free is None else free
    require(free.shape == shape, "free.shape", free.shape, str(shape))
    root = np.sqrt(counts / counts.mean())
    x, left = root[:, None] * x, root * (y - x @ center)
    free = free | (strength <= _NIL * np.abs(x.T @ left).max() / len(left))
    # Whatever the others are, the free ones are least squares: solved for, they leave a LASSO.
    fit = np.linalg.lstsq(x[:, free], np.column_stack([x[:, ~free], left]))[0]
    rest = x[:, ~free] - x[:, free] @ fit[:, :-1]
    moved = np.zeros(shape)
    moved[~free] = _penalized(rest, left - x[:, free] @ fit[:, -1], strength)
    moved[free] = fit[:, -1] - fit[:, :-1] @ moved[~free]
    return center + moved


def _penalized(x: Array, y: Array, strength: float) -> Array:
    if np.abs(x.T @ y).max(initial=0.0) <= strength * len(y):
        return np.zeros(x.shape[1])
    # It goes through columns in turn, but draws from the process's generator without a seed.
    solver = Lasso(strength, fit_intercept=False, tol=_TOLERANCE, max_iter=_PASSES, random_state=0)
    return np.asarray(solver.fit(x, y).coef_)


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


def high_dim(tasks: Sequence[Rows], sigma: float, *, c: float = 1.0) -> tuple[Array, Array]:
    """Debiases each task's LASSO around the global parameter that ``transfer`` finds.

    Its strength is lambda_m (Proposition 3). See ``transfer`` for arguments and errors.

    Returns:
        Each task's coefficients, shape (M, d), and that parameter, shape (d,).
    """
    center = transfer(tasks, sigma, c=c).coef
    strengths = transfer_bounds(_sizes(tasks), len(center), c * sigma).own
    around = [lasso_debiasing(x, center, own) for x, own in zip(tasks, strengths, strict=True)]
    return np.stack(around), center


def transfer(
    tasks: Sequence[Rows], sigma: float, *, c: float = 1.0, radius: float = np.inf
) -> Transfer:
    """Estimates a sparse beta* by constrained l1-minimization (Algorithm 3).

    Minimizes ``lambda_all ||beta||_1 + sum_m lambda_m n_m / n_[M] ||delta_m||_1`` with, for each
    task, ``||X'(X (beta + delta_m) - y)||_inf / n_m <= lambda_m``, and for all together
    ``||sum_m X'(X (beta + delta_m) - y)||_inf / n_[M] <= lambda_all``. Also
    ``||delta_m||_2 <= radius``. The paper prints the bounds without 1 / n_m; but lambda_m is of
    order 1 / sqrt(n_m) and X'epsilon of order sqrt(n_m), so that not even the true parameters would
    satisfy them.

    The constraints are the optimality conditions of ``sum_m ||X (beta + delta_m) - y||^2 / (2
    n_[M])`` plus this penalty, as a Dantzig selector's constraints are those of the LASSO. As
    printed, the first task has no delta and no bound of its own, deltas weigh ``lambda_m``, and
    ``||beta - beta_init||_1 <= 1 / lambda_1`` with the first task's LASSO beta_init. Then a
    deviation of a single task costs sqrt(M) times as much in its delta as in beta, which absorbs
    it, and the last bound has the inverse unit of beta. With d = 200, n_m = 100, M = 10 that did
    worse than a LASSO for each task, and this better.

    Args:
        tasks: Rows of each task, any number of them. Columns have about unit variance; for an
            intercept, center columns and y.
        sigma: Standard deviation of the noise, > 0. (Tasks with fewer rows than columns cannot
            estimate it.)
        c: Scale of the bounds, > 0.
        radius: b of Condition 11, in the unit of beta, at least 0. With infinity there is no bound,
            and there always is a solution.

    Raises:
        ImportError: If cvxpy is not installed.
        ValueError: If a value is out of range, there is no task, or no parameters satisfy
            the bounds.
    """
    require(len(tasks) > 0, "number of tasks", 0, "at least 1")
    require(sigma > 0, "sigma", sigma, "positive")
    require(c > 0, "c", c, "positive")
    require(radius >= 0, "radius", radius, "at least 0")
    cp, dim, sizes = _cvxpy(), tasks[0].x.shape[1], _sizes(tasks)
    beta, deltas = cp.Variable(dim), cp.Variable((len(tasks), dim))
    # In units of sigma: what solvers take for 0 has no unit.
    bounds, shares = transfer_bounds(sizes, dim, c), sizes / sizes.sum()
    total, constraints = 0, []
    for m, rows in enumerate(tasks):
        x, y, counts = condense(rows).counted()
        root = np.sqrt(counts / counts.sum())
        x, y = root[:, None] * x, root * y / sigma
        residual = cp.Variable(len(y))  # of its own: X'X would be a larger matrix than X
        gradient = x.T @ residual
        constraints += [
            residual == x @ (beta + deltas[m]) - y,
            cp.norm_inf(gradient) <= bounds.own[m],
        ]
        total += shares[m] * gradient
    constraints.append(cp.norm_inf(total) <= bounds.total)
    if np.isfinite(radius):
        constraints.append(cp.norm2(deltas, axis=1) <= radius / sigma)
    penalty = bounds.total * cp.norm1(beta) + (bounds.own * shares) @ cp.sum(cp.abs(deltas), axis=1)
    problem = cp.Problem(cp.Minimize(penalty), constraints)
    problem.solve(solver=cp.CLARABEL)  # HiGHS, tried once, took 13 times as long
    solved = problem.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE)
    require(solved, "c", c, f"such that parameters are within the bounds ({problem.status})")
    return Transfer(sigma * beta.value, sigma * deltas.value)


def _sizes(tasks: Sequence[Rows]) -> Array:
    return np.array([rows.counted()[2].sum() for rows in tasks])


def _cvxpy() -> Any:
    try:
        import cvxpy  # noqa: PLC0415 - optional, and slow to import
    except ImportError as error:
        install = "pip install -c constraints.txt -e '.[convex]'"
        raise ImportError(f"Algorithm 3 needs cvxpy: {install}") from error
    return cvxpy
