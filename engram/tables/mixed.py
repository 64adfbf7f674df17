"""Mixed models: coefficients that scatter over tasks, by restricted maximum likelihood.

Task m has ``beta_m = beta + b_m``, where the b_m are independent and normal, ``b_m ~ N(0, s^2 T)``
with ``T = diag(t)``: a column with t_k = 0 has one coefficient for all tasks (in lme4's notation,
``Z`` is X and ``Lambda`` is the root of T). In linear models s is the noise; otherwise it is 1.

For given t, beta and b minimize the sum of the rows' deviances and of ``b' T^-1 b``. With working
weights W (Breslow and Clayton 1993; 1 in linear models), a task takes part by its information about
beta, ``S_m = X' V^-1 X = (I + A T)^-1 A``, ``A = X' W X``, ``V = W^-1 + X T X'``, and the score
``g_m = X' V^-1 (y - X beta)``, of which ``b_m = T g_m``. So no matrix is larger than d x d.

Variances minimize, for linear models, the profiled REML criterion (Bates, Maechler, Bolker, Walker.
Fitting Linear Mixed-Effects Models Using lme4. 2015, "The REML criterion"):

    sum_m log |I + A_m T| + log |S| + (n - d) (1 + log(2 pi r^2 / (n - d))),    S = sum_m S_m,

with r^2 the least penalized sum of squares. For classes and counts, the last term is that minimum,
which makes it Laplace's approximation of the likelihood after beta and b are integrated out (REML
for generalized models); its error is large with a handful of cases a task.

Its slope is ``tr(P V_k) - (n - d) sum_m g_mk^2 / r^2`` for linear models, with
``tr(P V_k) = sum_m (S_m - S_m S^-1 S_m)_kk``. At the least criterion it is 0 where t_k > 0, and not
below 0 where t_k = 0, which is known as a singular fit. Both are checked.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from scipy.optimize import minimize

from engram.core.arrays import Array, Bools
from engram.tables.families import FAMILIES, FamilyName
from engram.tables.site import Rows

_FLAT: Final = 1e-2  # slope by the logarithm of a deviation, in units of deviance
_NIL: Final = 1e-4  # share of a column's effect on y, below which a deviation may be 0
_AGAIN: Final = 0.1  # deviation that a search begins with where one of 0 is not the best
_SEARCHES: Final = 6
_STEPS: Final = 100  # of Newton's method, at most
_HALVINGS: Final = 30
_TOLERANCE: Final = 1e-11  # of a step's gain, beside the objective
_DEPENDENT: Final = 1e-10  # least eigenvalue of the columns' cross-products
_SKEWS: Final[dict[str, Callable[[Array], Array]]] = {  # third derivative of psi, by the second
    "logistic": lambda mean: 1 - 2 * mean,
    "poisson": np.ones_like,
}
_CERTAIN: Final = 1e-8  # information of a row, below which a likelihood still rises to infinity
_NOISELESS: Final = 1e-12  # share of the target's squares that is no more than rounding


class MixedFit(NamedTuple):
    """A mixed model that has been fitted.

    Attributes:
        shared: The coefficients beta of all tasks, shape (d,).
        deviations: Each task's predicted deviations b_m (BLUPs, or modes), shape (M, d).
        variance: Of each coefficient over tasks, ``s^2 t``, shape (d,).
        sigma: Standard deviation of a linear model's noise; 1 for other families.
        criterion: The REML criterion, or Laplace's, with its constants but those of targets.
    """

    shared: Array
    deviations: Array
    variance: Array
    sigma: float
    criterion: float


class _Products(NamedTuple):
    """Cross-products of each task's rows: ``A`` (M, d, d), ``X' W y`` (M, d), and ``y' W y``."""

    a: Array
    c: Array
    squares: float


class _Solved(NamedTuple):
    """Penalized least squares for given variances; see the module's text."""

    shared: Array  # beta
    scores: Array  # g, (M, d)
    kept: Array  # (I + A T)^-1, (M, d, d)
    information: Array  # S_m, (M, d, d)
    inverse: Array  # of their sum
    volume: float  # the logarithms of determinants in the criterion
    rest: float  # r^2


class _Value(NamedTuple):
    """A criterion, its slope by t, and the fit that they are of."""

    criterion: float
    slope: Array
    shared: Array
    deviations: Array
    noise: float  # s^2


def fit_mixed(tasks: Sequence[Rows], scatters: Bools, *, family: FamilyName = "linear") -> MixedFit:
    """Fits a mixed model with independent random coefficients.

    Args:
        tasks: Each task's rows, which may be fewer than columns.
        scatters: Which columns have a random coefficient, shape (d,): that of the ones gives random
            intercepts, others random slopes.
        family: The family of models.

    Raises:
        ValueError: If the rows of all tasks do not determine the shared coefficients, or leave no
            noise, or no maximum of the likelihood was found: the slopes are not 0.
    """
    rows = [part.counted() for part in tasks]
    total = float(sum(counts.sum() for *_, counts in rows))
    squares = sum(counts @ x**2 for x, _, counts in rows) / total
    scale = np.sqrt(np.where(squares > 0, squares, 1.0))
    rows = [(x / scale, y, counts) for x, y, counts in rows]
    _check(rows, total)
    value = _linear(rows, total) if family == "linear" else _general(rows, family)
    roots, found = _least(value, scatters)
    variance = found.noise * (roots / scale) ** 2
    return MixedFit(
        found.shared / scale,
        found.deviations / scale,
        variance,
        found.noise**0.5,
        # The volume counts columns in their own units again.
        found.criterion + 2 * float(np.log(scale).sum()),
    )


_Rows = list[tuple[Array, Array, Array]]  # x, y and weights of each task


def _check(rows: _Rows, total: float) -> None:
    d = rows[0][0].shape[1]
    if total <= d:
        raise ValueError(f"it needs more rows than its {d} shared coefficients, got {total:g}")
    products = sum((x * counts[:, None]).T @ x for x, _, counts in rows) / total
    if np.linalg.eigvalsh(products)[0] < _DEPENDENT:
        raise ValueError("some of its columns depend on each other in the rows of all tasks")


# --- The search for variances --------------------------------------------------------------------


def _least(value: Callable[[Array], _Value], scatters: Bools) -> tuple[Array, _Value]:
    """Returns the roots of t with the least criterion, and its value there.

    The slope by a root is 0 where the root is, so that a search never leaves 0 by itself: another
    one begins above it where the slope by t says so. Each is in units of the roots that it begins
    with, since these may be hundreds where tasks have next to no noise.

    Raises:
        ValueError: If slopes are not 0 after all.
    """
    roots, steep = np.where(scatters, 1.0, 0.0), 0.0
    again = ~scatters
    for _ in range(_SEARCHES):
        roots = _searched(value, roots)
        roots[(roots < _NIL) & (value(roots**2).slope > 0)] = 0.0
        found = value(roots**2)
        steep = float(np.abs(2 * roots**2 * found.slope).max())
        # A second search that comes back to 0 has found the least at less than ``_NIL``.
        stuck = (roots == 0) & (found.slope < -_FLAT) & ~again
        if steep < _FLAT and not stuck.any():
            return roots, found
        roots[stuck] = _AGAIN
        again = again | stuck
    raise ValueError(f"no maximum of its likelihood was found: a slope of {steep:.2g} is left")


def _searched(value: Callable[[Array], _Value], roots: Array) -> Array:
    def at(times: Array) -> tuple[float, Array]:
        found = value((times * roots) ** 2)
        return found.criterion, 2 * times * roots**2 * found.slope

    begin, bounds = np.ones(len(roots)), [(0.0, None)] * len(roots)
    options = {"maxiter": 1000, "ftol": 1e-13, "gtol": _FLAT / 100}
    ended = minimize(at, begin, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return np.asarray(ended.x * roots)


def _solved(of: _Products, t: Array) -> _Solved:
    inner = np.eye(len(t)) + of.a * t
    kept = np.asarray(np.linalg.inv(inner), dtype=np.float64)
    information: Array = kept @ of.a
    own = (kept @ of.c[..., None])[..., 0]
    total = information.sum(axis=0)
    inverse = np.linalg.inv(total)
    shared = inverse @ own.sum(axis=0)
    volume = float(np.linalg.slogdet(inner)[1].sum() + np.linalg.slogdet(total)[1])
    rest = of.squares - float(np.sum(of.c * t * own)) - float(own.sum(axis=0) @ shared)
    return _Solved(shared, own - information @ shared, kept, information, inverse, volume, rest)


def _traces(at: _Solved) -> Array:
    """Returns ``tr(P V_k)`` for each column."""
    s = at.information
    return np.asarray(np.einsum("mkk->k", s) - np.einsum("mkj,ji,mik->k", s, at.inverse, s))


# --- Linear models -------------------------------------------------------------------------------


def _linear(rows: _Rows, total: float) -> Callable[[Array], _Value]:
    """Returns the profiled REML criterion as a function of t.

    Rows are replaced by residuals of pooled least squares, which the criterion does not see, lest
    digits be lost where shared coefficients explain nearly all.

    Raises:
        ValueError: If no noise is left.
    """
    a = np.stack([(x * counts[:, None]).T @ x for x, _, counts in rows])
    pooled = np.linalg.solve(a.sum(0), sum(x.T @ (counts * y) for x, y, counts in rows))
    left = [(x, y - x @ pooled, counts) for x, y, counts in rows]
    c = np.stack([x.T @ (counts * y) for x, y, counts in left])
    squares = float(sum(counts @ y**2 for _, y, counts in left))
    whole = float(sum(counts @ y**2 for _, y, counts in rows))
    free = total - a.shape[1]

    def value(t: Array) -> _Value:
        at = _solved(_Products(a, c, squares), t)
        if at.rest <= _NOISELESS * whole:
            raise ValueError("it leaves no noise: the rows follow a line without error")
        noise = at.rest / free
        return _Value(
            at.volume + free * (1 + float(np.log(2 * np.pi * noise))),
            _traces(at) - np.sum(at.scores**2, axis=0) / noise,
            pooled + at.shared,
            at.scores * t,
            noise,
        )

    return value


# --- Classes and counts --------------------------------------------------------------------------


def _general(rows: _Rows, family: FamilyName) -> Callable[[Array], _Value]:
    """Returns Laplace's criterion as a function of t.

    Beside ``tr(P V_k) - sum_m g_mk^2``, its slope has how working weights follow the mode:
    ``sum_i (w_i'/w_i) l_i (P V_k (y - mu))_i``, with the leverages ``l_i = w_i x_i' Q_m x_i``,
    ``Q_m = T K_m + K_m' S^-1 K_m`` and ``K_m = (I + A_m T)^-1``.
    """
    model, skew = FAMILIES[family], _SKEWS[family]

    def pull(x: Array, counts: Array, eta: Array, inner: Array) -> Array:
        weights = counts * model.curvature(eta) * skew(model.mean(eta))
        return np.asarray(x.T @ (weights * ((x @ inner) * x).sum(axis=1)))

    def value(t: Array) -> _Value:
        at, shared, deviations, deviance = _mode(rows, family, t)
        leverages = t[:, None] * at.kept + np.swapaxes(at.kept, 1, 2) @ at.inverse @ at.kept
        sites = zip(rows, shared + deviations, leverages, strict=True)
        each = [pull(x, counts, x @ own, inner) for (x, _, counts), own, inner in sites]
        pulls = (at.kept @ np.stack(each)[..., None])[..., 0]
        moved = np.einsum("mjk,mk->kj", at.information, at.scores)
        drift = np.sum(pulls * at.scores, axis=0) - moved @ at.inverse @ pulls.sum(axis=0)
        slope = _traces(at) - np.sum(at.scores**2, axis=0) + drift
        return _Value(deviance + at.volume, slope, shared, deviations, 1.0)

    return value


def _mode(rows: _Rows, family: FamilyName, t: Array) -> tuple[_Solved, Array, Array, float]:
    """Returns the mode of beta and b, the least penalized deviance, by Newton's method.

    Raises:
        ValueError: If it was not found, as where columns tell classes apart.
    """
    model = FAMILIES[family]

    def penalized(shared: Array, deviations: Array) -> float:
        fits = zip(rows, shared + deviations, strict=True)
        loss = sum(float(counts @ model.loss(x @ own, y)) for (x, y, counts), own in fits)
        return loss + float(np.sum(deviations[:, t > 0] ** 2 / t[t > 0]))

    size = sum(float(counts.sum()) for *_, counts in rows)
    shared, deviations = np.zeros(len(t)), np.zeros((len(rows), len(t)))
    least, close = penalized(shared, deviations), False
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(_STEPS):
            at = _solved(_working(rows, family, shared + deviations), t)
            if close:
                if np.linalg.eigvalsh(at.information.sum(axis=0))[0] < _CERTAIN * size:
                    break
                return at, shared, deviations, least
            to, apart = at.shared - shared, at.scores * t - deviations
            for _ in range(_HALVINGS):
                new = penalized(shared + to, deviations + apart)
                if new <= least + _TOLERANCE * abs(least):
                    break
                to, apart = to / 2, apart / 2
            # Steps square what is left: after one that gains next to nothing there is nothing.
            close = least - new <= _TOLERANCE * (1 + abs(least))
            shared, deviations, least = shared + to, deviations + apart, new
    raise ValueError("no maximum of its likelihood was found: its columns tell the target apart")


def _working(rows: _Rows, family: FamilyName, coef: Array) -> _Products:
    """Returns the cross-products of rows by working weights and responses."""
    model, a, c = FAMILIES[family], [], []
    for (x, y, counts), own in zip(rows, coef, strict=True):
        eta = x @ own
        weights = counts * model.curvature(eta)
        a.append((x * weights[:, None]).T @ x)
        c.append(x.T @ (weights * eta + counts * (y - model.mean(eta))))
    return _Products(np.stack(a), np.stack(c), 0.0)
