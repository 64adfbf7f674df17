"""The search for sites that differ from the others, by scores and likelihood ratios.

At a fit, the score u of one site's coefficient tells whether it should leave the shared value: with
the efficient variance V, which is its information less what the estimates of all others take,
``u / sqrt(V)`` is normal if it should not (Rao 1948). Of all M d coefficients the farthest one is
taken if it is beyond Bonferroni's quantile. As a score is far from normal with few events, the
likelihood ratio must be beyond it as well. Then the coefficient becomes the site's own, and the
others are tested again. A column with fewer than three sites that agree names nobody: of two that
differ from one another, none is the odd one.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from engram.core.arrays import Array
from engram.core.checks import require
from engram.tables.survival.site_effects import SiteEffects, Sites, fit_effects, positions

_FEWEST: Final = 3  # sites that share a column, of which one may be named
_NIL: Final = 1e-9  # of an information: what the other estimates leave of it


class Difference(NamedTuple):
    """A site's coefficient that differs from the shared one."""

    site: int  # number of the site, from 0
    column: int  # number of the column
    score: float  # efficient score in standard deviations: its sign is that of the difference
    ratio: float  # the likelihood ratio, twice the gain of the log-likelihood
    p_value: float  # by the smaller one of both, times M d (Bonferroni), at most 1


class Naming(NamedTuple):
    """The result of a search."""

    shared: SiteEffects  # the stratified fit without separate coefficients
    effects: SiteEffects  # the fit with those that differ
    differences: Sequence[Difference]  # they, the farthest first


def name_sites(
    sites: Sites,
    columns: int,
    *,
    level: float = 0.95,
    names: Sequence[str] | None = None,
) -> Naming:
    """Finds the sites that differ from the others, and in which columns.

    Args:
        sites: Each site's sums.
        columns: d.
        level: Probability that nobody is named where no site differs, in (0, 1).
        names: Names of the columns, for errors.

    Raises:
        NoMaximum: There is no event, or columns are dependent.
    """
    require(0 < level < 1, "level", level, "in (0, 1)")
    none = np.zeros((len(sites), columns), dtype=bool)
    reach = -float(ndtri((1 - level) / 2 / none.size))
    shared = effects = fit_effects(sites, none, names=names)
    differences, refused = list[Difference](), none.copy()
    while True:
        scores = np.where(refused, 0.0, efficient_scores(effects))
        site, column = np.unravel_index(np.argmax(np.abs(scores)), scores.shape)
        score = float(scores[site, column])
        if abs(score) <= reach:
            return Naming(shared, effects, differences)
        separate = effects.separate.copy()
        separate[site, column] = True
        more = fit_effects(sites, separate, effects, names)
        ratio = 2 * (more.joint.loglik - effects.joint.loglik)
        if ratio <= reach**2:
            refused[site, column] = True
            continue
        p_value = min(1.0, 2 * float(ndtr(-min(abs(score), ratio**0.5))) * none.size)
        differences.append(Difference(int(site), int(column), score, ratio, p_value))
        effects, refused = more, none.copy()


def efficient_scores(effects: SiteEffects) -> Array:
    """Returns ``u / sqrt(V)`` of every coefficient, shape (M, d).

    0 for those that are separate already, in columns that fewer than three sites share, and where a
    site knows nothing.
    """
    inverse = np.linalg.inv(effects.joint.information)
    scores = np.zeros(effects.coef.shape)
    informed = np.stack([np.diag(one.information) > 0 for one in effects.sums])
    agree = (informed & ~effects.separate).sum(axis=0)
    for m, (one, at) in enumerate(zip(effects.sums, positions(effects.separate), strict=True)):
        information = np.diag(one.information)
        taken = np.diag(one.information @ inverse[np.ix_(at, at)] @ one.information)
        left = information - taken
        some = ~effects.separate[m] & (agree >= _FEWEST) & (left > _NIL * information)
        scores[m, some] = one.score[some] / np.sqrt(left[some])
    return scores
