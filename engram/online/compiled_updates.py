"""Compiled updates of a mixture of linear models, and of running moments, by rows of a stream.

``mixture`` states the algorithm. Functions here change the arrays that they are given.
"""

from typing import Final, NamedTuple

import numpy as np

from engram.core.arrays import Array
from engram.online.compiled import compiled

SQUARED: Final = 0
LOGISTIC: Final = 1
PINBALL: Final = 2
HINGE: Final = 3

_LONGEST_BET: Final = 4.0  # bettors cut a derivative times a column's value to this
_SWITCHING: Final = 1e-3  # share of the weights that is spread evenly after each row
_MEMORY: Final = 0.99  # a row with far numbers counts so much less with each later one
_LEAST_NOISE: Final = 1e-6  # of losses, in units in which the target has standard deviation 1
_HEAVIEST: Final = 1e30  # in units of the first row's weight: numbers stay finite
_CONSTANT: Final = 1e-12  # in parts of its mean: a column that varies by less is constant


class Experts(NamedTuple):
    """State of the experts of m outputs, for n = d + 1 columns, the last of which is all ones.

    Expert 0 bets; the K others are Kalman filters.
    """

    coefficients: Array  # of all experts, shape (m, 1 + K, n)
    bets: Array  # of the bettor: sums of cut gradients, their absolute values; wealth: (m, 3, n)
    covariances: Array  # of the filters, (m, K, n, n), or only the diagonals, (m, K, 1, n)
    shares: Array  # weights of the experts, shape (m, 1 + K)
    noise: Array  # sums of weights of rows, losses, and squared derivatives: (m, 3)
    calibration: Array  # scale and shift of the mixture's log-odds, shape (m, 2)
    doubt: Array  # their covariance, shape (m, 2, 2)
    far: Array  # losses of rows with far numbers, by where these are cut: see ``judge``


@compiled
def within(x: Array, limit: float) -> bool:
    """Returns whether all numbers of rows (T, d) are in [-limit, limit]; NaN is not."""
    good = True
    for row in x:
        for value in row:
            good &= abs(value) <= limit
    return good


@compiled
def deviation(mean: float, squares: float, weight: float) -> float:
    """Returns a standard deviation from a weighted sum of squares; 1 where all was constant."""
    scale: float = np.sqrt(squares / weight) if weight > 0 else 0.0
    return scale if scale > _CONSTANT * abs(mean) else 1.0


@compiled
def deviations(mean: Array, squares: Array, weight: float) -> Array:
    """Returns ``deviation`` of each number."""
    scale = np.empty_like(mean)
    for j in range(len(mean)):
        scale[j] = deviation(mean[j], squares[j], weight)
    return scale


@compiled
def include(
    mean: Array, squares: Array, before: float, x: Array, weight: float, reach: float
) -> None:
    """Includes a row in running means and sums of squares (Welford, 1962).

    ``before`` is the weight of all earlier rows. Where they vary, a number further than ``reach``
    standard deviations from the mean counts as that far.
    """
    total = before + weight
    for j in range(len(mean)):
        varies = squares[j] > 0
        limit = reach * deviation(mean[j], squares[j], before) if varies else np.inf
        value = min(max(x[j], mean[j] - limit), mean[j] + limit)
        distance = value - mean[j]
        mean[j] += distance * (weight / total)
        squares[j] += weight * distance * (value - mean[j])


@compiled
def standardize(
    mean: Array, squares: Array, weight: float, x: Array, reach: float, z: Array
) -> None:
    """Fills ``z`` with standardized numbers, cut to [-reach, reach]."""
    for j in range(len(mean)):
        value = (x[j] - mean[j]) / deviation(mean[j], squares[j], weight)
        z[j] = min(max(value, -reach), reach)


@compiled
def shrink(z: Array, target: Array, reach: float) -> None:
    """Multiplies a row and its targets by the factor that brings the row within ``reach``."""
    factor = 1.0
    for value in z:
        factor = min(factor, reach / max(abs(value), reach))
    if factor < 1.0:
        z *= factor
        target *= factor
    for k in range(len(target)):
        target[k] = min(max(target[k], -reach), reach)


@compiled
def loss_of(kind: int, level: float, p: float, y: float) -> tuple[float, float]:
    """Returns a loss of ``losses`` and its derivative; ``level`` is the pinball loss's quantile."""
    if kind == SQUARED:
        return (p - y) ** 2 / 2, p - y
    if kind == LOGISTIC:
        margin = y * p
        odds = np.exp(-abs(margin))  # of what is less likely
        wrong = (odds if margin > 0 else 1.0) / (1 + odds)
        return max(-margin, 0.0) + np.log1p(odds), -y * wrong
    if kind == PINBALL:
        if p == y:
            return 0.0, 0.0
        derivative = 1 - level if p > y else -level
        return derivative * (p - y), derivative
    return (1 - y * p, -y) if y * p < 1 else (0.0, 0.0)


@compiled
def _curvature(kind: int, derivative: float, noise: Array, scale: float) -> float:
    """Returns the second derivative of loss / scale, or its mean, as derivatives tell."""
    if kind == SQUARED:
        return 1 / scale
    if kind == LOGISTIC:
        return abs(derivative) * (1 - abs(derivative))
    curvature: float = noise[2] / noise[0] / scale**2
    return curvature


@compiled
def _scale(kind: int, noise: Array) -> float:
    """Returns the factor that makes a loss a negative log-likelihood, from losses so far."""
    if kind == LOGISTIC:
        return 1.0
    mean: float = noise[1] / noise[0]
    return max(2 * mean if kind == SQUARED else mean, _LEAST_NOISE)


@compiled
def judge(
    kind: int, level: float, z: Array, target: Array, reach: float, w: Array, losses: Array
) -> None:
    """Adds the losses that a row with far numbers has where they are cut, each at another length.

    Args:
        kind: The loss.
        level: Quantile of the pinball loss.
        z: A standardized row, shape (d + 1,).
        target: Its standardized targets, shape (m,).
        reach: The least length, in standard deviations.
        w: Coefficients, shape (m, d + 1).
        losses: Sums so far, in which earlier rows count less: (lengths,), of ``reach``, twice that,
            and so on.
    """
    losses *= _MEMORY
    for i in range(len(losses)):
        limit = reach * 2.0**i
        for k in range(len(target)):
            p = 0.0
            for j in range(len(z)):
                p += w[k, j] * min(max(z[j], -limit), limit)
            losses[i] += loss_of(kind, level, p, target[k])[0]


@compiled
def _mixed(shares: Array, coefficients: Array) -> Array:
    w = np.zeros((coefficients.shape[0], coefficients.shape[2]))
    for k in range(len(w)):
        for i in range(shares.shape[1]):
            w[k] += shares[k, i] * coefficients[k, i]
    return w


@compiled
def bet(derivative: float, z: Array, wealth: float, bets: Array, w: Array) -> None:
    """Coin betting per column; each starts with the same ``wealth``."""
    for j in range(len(z)):
        coin = min(max(derivative * z[j] / _LONGEST_BET, -1.0), 1.0)
        bets[0, j] -= coin
        bets[1, j] += abs(coin)
        bets[2, j] = max(bets[2, j] - coin * _LONGEST_BET * w[j], 0.0)
        w[j] = bets[0, j] / (1 + bets[1, j]) * (wealth + bets[2, j]) / _LONGEST_BET


@compiled
def kalman(
    first: float, second: float, z: Array, drift: float, prior: Array, p: Array, w: Array, u: Array
) -> None:
    """A Kalman filter's step; ``p`` is its covariance, or the diagonal; fills ``u`` with P z."""
    n, full = len(z), len(p) == len(z)
    if full:
        u[:] = 0.0
        for i in range(n):
            if z[i] != 0:
                for j in range(n):
                    u[j] += z[i] * p[i, j]
    else:
        for j in range(n):
            u[j] = p[0, j] * z[j]
    gain = 1 / (1 + second * max(np.dot(u, z), 0.0))
    shrink = np.sqrt(second * gain)
    for j in range(n):
        w[j] -= gain * first * u[j]
        u[j] *= shrink
    for i in range(n):
        row = p[i] if full else p[0]
        if full:
            for j in range(n):
                row[j] -= u[i] * u[j]
        else:
            row[i] -= u[i] * u[i]
        row[i] = max(min(row[i] + drift * prior[i], prior[i]), row[i], 0.0)


@compiled
def calibrate(first: float, second: float, s: float, factors: Array, p: Array) -> None:
    """The same filter's step for the scale and the shift of log-odds ``s``."""
    u, v = p[0, 0] * s + p[0, 1], p[1, 0] * s + p[1, 1]
    gain = 1 / (1 + second * max(u * s + v, 0.0))
    factors[0] -= gain * first * u
    factors[1] -= gain * first * v
    p[0, 0] -= second * gain * u * u
    p[0, 1] -= second * gain * (u * v)
    p[1, 0] -= second * gain * (u * v)
    p[1, 1] -= second * gain * v * v


@compiled
def reweigh(losses: Array, shares: Array) -> None:
    """Bayes' rule with a fixed share, so that a new best expert is soon followed."""
    shares *= np.exp(np.min(losses) - losses)
    shares *= (1 - _SWITCHING) / np.sum(shares)
    shares += _SWITCHING / len(shares)


@compiled
def _learn_output(
    kind: int,
    level: float,
    z: Array,
    y: float,
    weight: float,
    drifts: Array,
    prior: Array,
    k: int,
    experts: Experts,
) -> None:
    shares, w = experts.shares[k], experts.coefficients[k]
    noise = experts.noise[k]
    scale = _scale(kind, noise)
    losses, u = np.empty(len(shares)), np.empty(len(z))
    mixed = 0.0
    for i in range(len(shares)):
        p = np.dot(w[i], z)
        mixed += shares[i] * p
        loss, derivative = loss_of(kind, level, p, y)
        losses[i] = weight * loss / scale
        if i == 0:
            bet(weight * derivative, z, 1 / np.sqrt(len(z)), experts.bets[k], w[i])
        else:
            second = weight * _curvature(kind, derivative, noise, scale)
            covariance = experts.covariances[k, i - 1]
            kalman(
                weight * derivative / scale, second, z, drifts[i - 1], prior, covariance, w[i], u
            )
    factors = experts.calibration[k]
    loss, derivative = loss_of(kind, level, factors[0] * mixed + factors[1], y)
    if kind == LOGISTIC:
        second = weight * _curvature(kind, derivative, noise, scale)
        calibrate(weight * derivative, second, mixed, factors, experts.doubt[k])
    reweigh(losses, shares)
    noise[0] += weight
    noise[1] += weight * loss
    noise[2] += weight * derivative**2


@compiled
def predict_rows(
    x: Array,
    w: Array,
    reach: float,
    columns: tuple[Array, Array],
    targets: tuple[Array, Array],
    weight: float,
) -> Array:
    """Returns predictions (T, m), in units of the targets.

    Args:
        x: Rows, shape (T, d).
        w: Coefficients for standardized columns and a column of ones, shape (m, d + 1).
        reach: Standard deviations beyond which a number counts as nearer.
        columns: Mean and sum of squares of columns, shapes (d,).
        targets: The same of targets, shapes (m,).
        weight: Weight of all rows so far.
    """
    d, scales = x.shape[1], deviations(targets[0], targets[1], weight)
    z, p = np.ones(d + 1), np.empty((len(x), len(w)))
    for t in range(len(x)):
        standardize(columns[0], columns[1], weight, x[t], reach, z[:d])
        for k in range(len(w)):
            p[t, k] = targets[0][k] + scales[k] * np.dot(w[k], z)
    return p


@compiled
def learn_rows(
    kind: int,
    level: float,
    x: Array,
    y: Array,
    weights: Array,
    unit: float,
    reach: float,
    standardized: bool,
    before: float,
    drifts: Array,
    prior: Array,
    column_means: Array,
    column_squares: Array,
    target_means: Array,
    target_squares: Array,
    coefficients: Array,
    bets: Array,
    covariances: Array,
    shares: Array,
    noise: Array,
    calibration: Array,
    doubt: Array,
    far: Array,
) -> None:
    """Learns rows, one after the other.

    The state comes array by array, as tuples of arrays take a microsecond to pass: moments of
    columns, (d,), and of targets, (m,), with sums of squared distances from the mean; and the
    arrays of ``Experts``.

    ``level`` is the quantile of the pinball loss. Rows are ``x`` (T, d), with targets ``y`` (T, m)
    and ``weights`` > 0 (T,), which count in units of the first row's weight, ``unit``, up to a
    bound; ``before`` is the weight of all earlier rows. Numbers beyond ``reach`` standard
    deviations count as nearer. Unless targets are ``standardized``, their moments stay 0. Filters'
    coefficients have variance ``prior`` (d + 1,) before the first row, and drift each row by the
    parts ``drifts`` (K,) of it.
    """
    experts = Experts(coefficients, bets, covariances, shares, noise, calibration, doubt, far)
    d, whole = x.shape[1], kind in (SQUARED, PINBALL)
    z, target = np.ones(d + 1), np.empty(y.shape[1])
    for t in range(len(x)):
        include(column_means, column_squares, before, x[t], weights[t], reach)
        if standardized:
            include(target_means, target_squares, before, y[t], weights[t], reach)
        before += weights[t]
        limit = np.inf if whole else reach
        standardize(column_means, column_squares, before, x[t], limit, z[:d])
        standardize(target_means, target_squares, before, y[t], limit, target)
        z[d] = 1.0
        if whole:
            if not within(z[None], reach):
                judge(kind, level, z, target, reach, _mixed(shares, coefficients), far)
            shrink(z, target, reach)
        for k in range(len(target)):
            share = min(weights[t] / unit, _HEAVIEST)
            _learn_output(kind, level, z, target[k], share, drifts, prior, k, experts)
