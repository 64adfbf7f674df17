"""Effects as statisticians print them: estimates, errors, tests, intervals, ratios.

Everything here takes estimates, their covariance and degrees of freedom, of any model.

Intervals of k coefficients hold simultaneously by the quantile q of the largest ``|t_j|`` under
their joint distribution, multivariate normal or Student's t with the estimates' correlations
(max-t; Hothorn, Bretz, Westfall 2008): ``coef ± q error``. Independent estimates, such as those of
different sites, have a closed form: each interval has level ``level^(1/k)`` (Sidak 1967). P-values
are adjusted by Holm (1979), which asks nothing of the dependence.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import chdtri, ndtr, ndtri, stdtr
from scipy.stats import qmc

from engram.core.arrays import Array
from engram.core.checks import require
from engram.scoring.intervals import holm, quantile
from engram.tables.intervals import Intervals

RATIOS: Final = {"logistic": "odds ratio", "poisson": "rate ratio", "hazards": "hazard ratio"}
"""Names of exponentials of coefficients, by family; linear models have no ratios."""

_POINTS: Final = 14  # logarithm of the number of Sobol's points, to base 2
_NODES: Final = 32  # of Gauss's rule, in each dimension
_RIDGE: Final = 1e-8  # share of independent noise, for singular matrices
_LEAST: Final = 1e-300
_ROUNDING: Final = 1e-16
_LEAST_P: Final = 1e-4  # smaller p-values are not written out


class Summary(NamedTuple):
    """Coefficients with tests and intervals; ``print`` shows them as a table.

    ``error`` and ``p_value`` are those of ``own`` where there is one. An infinite error stands for
    none.
    """

    title: str  # title of the table
    level: float  # level of the intervals, in (0, 1)
    names: Sequence[str]  # names of the lines: of columns, or of sites
    coef: Array  # coefficients, shape (d,)
    limits: Intervals  # the intervals
    error: Array  # standard errors, shape (d,)
    p_value: Array  # two-sided, of the hypothesis that a coefficient is 0, shape (d,)
    freedom: Array | float  # degrees of freedom of the errors; infinite for normal distributions
    own: Array | None = None  # a task's own estimates, if they are others than ``coef``
    ratio: str = ""  # what exponentials of coefficients are called; empty: there are none
    simultaneous: bool = False  # whether intervals and p-values hold for all lines at once
    heading: str = ""  # heading of the marks
    marks: Sequence[str] = ()  # remark on each line; none for any
    first: str = "column"  # heading of the names
    none: str = ""  # why an interval is lacking, where one is
    missing: str = ""  # what was missing

    @property
    def statistic(self) -> Array:
        """The estimates in units of their standard errors, shape (d,)."""
        estimate = self.coef if self.own is None else self.own
        some = (self.error > 0) & np.isfinite(self.error)
        return np.divide(estimate, self.error, out=np.full_like(estimate, np.nan), where=some)

    @property
    def shown(self) -> tuple[Array, Array, Array]:
        """Estimates and limits as they are printed: exponentials where there are ratios."""
        low, high = self.limits
        return self.printed(self.coef), self.printed(low), self.printed(high)

    def printed(self, values: Array) -> Array:
        """Returns coefficients as they are printed: exponentials where there are ratios."""
        return np.exp(values) if self.ratio else values

    def rows(self) -> list[dict[str, Any]]:
        """Lines as dictionaries, such as for ``pandas.DataFrame``; unknown numbers are NaN."""
        ratio, low, high = self.shown
        lines = {"coef": self.coef}
        lines |= {} if self.own is None else {"own": self.own}
        lines |= {self.ratio.replace(" ", "-"): ratio} if self.ratio else {}
        lines |= {"error": self.error, "statistic": self.statistic, "p-value": self.p_value}
        lines |= {"low": low, "high": high}
        known = [np.where(np.isinf(each), np.nan, each).tolist() for each in lines.values()]
        heads = [self.first, *lines]
        return [dict(zip(heads, row, strict=True)) for row in zip(self.names, *known, strict=True)]

    def __str__(self) -> str:
        estimate, low, high = self.shown
        limits = zip(low, high, np.isfinite(high - low), strict=True)
        kind, p = ("simultaneous", "p (Holm)") if self.simultaneous else ("interval", "p")
        columns: list[tuple[str, Sequence[str]]] = [
            (self.first, self.names),
            (self.ratio or "coef", shown_numbers(estimate)),
            (
                f"{self.level:.4g} {kind}",
                [f"{a:.4g} .. {b:.4g}" if x else "-" for a, b, x in limits],
            ),
        ]
        if self.own is not None:
            columns.append(("own", shown_numbers(self.printed(self.own))))
        letter = "z" if np.isinf(self.freedom).all() else "t"
        columns += [
            ("log s.e." if self.ratio else "std. error", shown_numbers(self.error)),
            (letter, shown_numbers(self.statistic, ".2f")),
            (p, [shown_p(value) for value in self.p_value]),
        ]
        if any(self.marks):
            columns.append((self.heading, self.marks))
        none = "" if np.isfinite(self.limits).all() else self.none
        notes = [note for note in (none, self.missing) if note]
        return "\n".join([self.title, *text_lines(columns), *notes])


def text_lines(columns: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Returns the lines of a table of headings and cells: names, and numbers to the right."""
    whole = [[heading, *cells] for heading, cells in columns]
    first, *widths = (max(map(len, column)) for column in whole)
    lines = zip(*whole, strict=True)
    aligned = [[name.ljust(first), *map(str.rjust, rest, widths)] for name, *rest in lines]
    return ["  ".join(cells).rstrip() for cells in aligned]


def shown_numbers(values: Array, digits: str = ".4g") -> list[str]:
    """Returns numbers as they are printed; a dash for those that are not finite."""
    return [f"{value:{digits}}" if np.isfinite(value) else "-" for value in values.tolist()]


def shown_p(value: float) -> str:
    """Returns a p-value as it is printed; a dash for NaN."""
    if np.isnan(value):
        return "-"
    return f"<{_LEAST_P:.4f}" if value < _LEAST_P else f"{value:.4f}"


def summarize(
    title: str,
    names: Sequence[str],
    coef: Array,
    covariance: Array,
    freedom: Array | float = np.inf,
    level: float = 0.95,
    simultaneous: bool = False,
    ratio: str = "",
) -> Summary:
    """Summarizes coefficients of any model.

    Args:
        title: Title of the table.
        names: Names of the coefficients.
        coef: Shape (d,).
        covariance: Shape (d, d); infinite on the diagonal where there is no estimate.
        freedom: Degrees of freedom, a number or of shape (d,); infinite for normal distributions.
        level: Level of each interval, or of all at once, in (0, 1).
        simultaneous: Whether intervals and p-values (Holm's) hold for all coefficients at once: by
            Sidak if the covariance is diagonal, and else by max-t, with the fewest of the degrees
            of freedom.
        ratio: What exponentials of coefficients are called, such as ``hazard ratio``; empty for
            none.
    """
    require(0 < level < 1, "level", level, "in (0, 1)")
    error = np.sqrt(np.diag(covariance))
    some = np.isfinite(error)
    with np.errstate(divide="ignore", invalid="ignore"):
        below = -np.abs(coef / np.where(some, error, np.nan))
    p_value = 2 * np.where(np.isinf(freedom), ndtr(below), stdtr(freedom, below))
    part = covariance[np.ix_(some, some)]
    if simultaneous and np.count_nonzero(part) > len(part):
        reach = np.asarray(max_t_quantile(level, part, float(np.min(freedom))))
    else:
        each = sidak(level, len(part)) if simultaneous else level
        reach = quantile((1 + each) / 2, freedom)
    half = np.where(some, reach * np.where(some, error, 1.0), np.inf)
    limits = Intervals(coef - half, coef + half)
    p_value = holm(p_value) if simultaneous else p_value
    found = Summary(title, level, names, coef, limits, error, p_value, freedom)
    return found._replace(ratio=ratio, simultaneous=simultaneous)


def sidak(level: float, count: int) -> float:
    """Level of each of so many independent intervals, of which all hold at ``level``."""
    return float(level ** (1 / max(count, 1)))


def max_t_quantile(level: float, covariance: Array, freedom: float = np.inf) -> float:
    """Quantile of the largest absolute value of correlated t-statistics.

    It solves ``P(max |t_j| <= q) = level``, by the integral of Genz (1992) over fixed points; with
    Student's t, over the common scale of the estimates as well.

    Args:
        level: In (0, 1).
        covariance: Of the estimates, shape (d, d), up to a factor; may be singular.
        freedom: Degrees of freedom of their common scale, > 0.
    """
    error = np.sqrt(np.diag(covariance))
    if len(error) == 1:
        return float(quantile((1 + level) / 2, freedom))
    correlation = covariance / np.outer(error, error)
    root = np.linalg.cholesky((1 - _RIDGE) * correlation + _RIDGE * np.eye(len(error)))
    # The scale, too, is drawn by its quantiles.
    unit, weights = _points(len(error) - 1 + bool(np.isfinite(freedom)))
    scale = np.ones(len(unit))
    if np.isfinite(freedom):
        scale, unit = np.sqrt(chdtri(freedom, unit[:, 0]) / freedom), unit[:, 1:]
    low = float(quantile((1 + level) / 2, freedom))
    high = float(quantile((1 + sidak(level, len(error))) / 2, freedom))
    inside = partial(_box, root, unit)
    return float(brentq(lambda q: weights @ inside(q * scale) - level, low / 2, 2 * high))


def _points(count: int) -> tuple[Array, Array]:
    """Returns points of the unit cube and their weights: Gauss's product rule, or Sobol's points.

    The former, in up to three dimensions, are exact to 1e-8; the latter to about 1e-3.
    """
    if count > 3:
        unit = qmc.Sobol(count, scramble=False).random_base2(_POINTS) + 0.5 ** (_POINTS + 1)
        return unit, np.full(len(unit), 0.5**_POINTS)
    if not count:
        return np.ones((1, 0)), np.ones(1)
    nodes, parts = np.polynomial.legendre.leggauss(_NODES)
    v = (nodes + 1) / 2
    # Dense at both ends, where normal quantiles are steep.
    unit, weights = v**3 * (10 - 15 * v + 6 * v**2), 15 * parts * (v * (1 - v)) ** 2
    each = [np.stack(np.meshgrid(*[one] * count), -1).reshape(-1, count) for one in (unit, weights)]
    return each[0], each[1].prod(axis=1)


def _box(root: Array, unit: Array, reach: Array) -> Array:
    """Returns the probability of ``|L z| <= reach`` at each point, z being normal, (n,)."""
    z, found = np.zeros((len(unit), len(root))), np.ones(len(unit))
    for k, row in enumerate(root):
        given = z[:, :k] @ row[:k]
        low, high = ndtr((-reach - given) / row[k]), ndtr((reach - given) / row[k])
        found *= high - low
        if k + 1 < len(root):
            z[:, k] = ndtri(np.clip(low + unit[:, k] * (high - low), _LEAST, 1 - _ROUNDING))
    return found
