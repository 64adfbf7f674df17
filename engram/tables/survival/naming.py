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
from typing import Final, NamedTuple, Self

import numpy as np
from scipy.special import ndtr, ndtri

from engram.core.arrays import Array, Bools
from engram.core.checks import require
from engram.tables.survival.partial import Sums
from engram.tables.survival.site_effects import EffectsAscent, SiteEffects, SumsAt, positions

_FEWEST: Final = 3  # sites that share a column, of which one may be named
_NIL: Final = 1e-9  # of an information: what the other estimates leave of it


class Difference(NamedTuple):
    """A site's coefficient that differs from the shared one.

    Attributes:
        site: Number of the site, from 0.
        column: Number of the column.
        score: The efficient score in standard deviations: its sign is that of the difference.
        ratio: The likelihood ratio, twice the gain of the log-likelihood.
        p_value: By the smaller one of both, times M d (Bonferroni), at most 1.
    """

    site: int
    column: int
    score: float
    ratio: float
    p_value: float


class Naming(NamedTuple):
    """The state of the search between two exchanges.

    Attributes:
        reach: Bonferroni's quantile.
        ascent: Of the model that is fitted now: the last one, or with one candidate more.
        shared: The fit without separate coefficients; None before it is done.
        effects: The last fit; None before the first one.
        candidate: The site, the column and the score of the candidate; None in the first fit.
        refused: Coefficients that the likelihood ratio does not confirm beside ``effects``.
        differences: Those confirmed, the farthest first.
        done: Whether nothing else differs.
    """

    reach: float
    ascent: EffectsAscent
    shared: SiteEffects | None
    effects: SiteEffects | None
    candidate: tuple[int, int, float] | None
    refused: Bools
    differences: tuple[Difference, ...]
    done: bool

    @classmethod
    def begin(cls, sites: int, columns: int, *, level: float = 0.95) -> Self:
        """Begins at coefficients of 0.

        Args:
            sites: M.
            columns: d.
            level: Probability that nobody is named where no site differs, in (0, 1).
        """
        require(0 < level < 1, "level", level, "in (0, 1)")
        none = np.zeros((sites, columns), dtype=bool)
        reach = -float(ndtri((1 - level) / 2 / none.size))
        return cls(reach, EffectsAscent.begin(none), None, None, None, none, (), False)

    @property
    def coef(self) -> Array:
        """Where each site is to compute its sums next, shape (M, d)."""
        return self.ascent.coef

    def take(self, sums: Sequence[Sums], names: Sequence[str] | None = None) -> Self:
        """Goes on with the sites' sums at ``coef``.

        Raises:
            NoMaximum: There is no event, or columns are dependent.
        """
        state = self._replace(ascent=self.ascent.take(sums, names))
        while state.ascent.done and not state.done:
            state = state._judge()
        return state

    def _judge(self) -> Self:
        """Accepts or refuses the candidate, and chooses the next one."""
        fit, state = self.ascent.effects(), self
        if self.effects is None:
            state = state._replace(shared=fit, effects=fit)
        elif self.candidate is not None:
            site, column, score = self.candidate
            ratio = 2 * (fit.joint.loglik - self.effects.joint.loglik)
            if ratio > self.reach**2:
                tail = 2 * float(ndtr(-min(abs(score), ratio**0.5)))
                named = Difference(site, column, score, ratio, min(1.0, tail * fit.coef.size))
                none = np.zeros_like(self.refused)
                differences = (*self.differences, named)
                state = state._replace(effects=fit, refused=none, differences=differences)
            else:
                refused = self.refused.copy()
                refused[site, column] = True
                state = state._replace(refused=refused)
        assert state.effects is not None
        scores = efficient_scores(state.effects)
        scores[state.refused] = 0.0
        site, column = map(int, np.unravel_index(np.argmax(np.abs(scores)), scores.shape))
        if abs(scores[site, column]) <= self.reach:
            return state._replace(done=True)
        separate = state.effects.separate.copy()
        separate[site, column] = True
        ascent = EffectsAscent.begin(separate, state.effects)
        return state._replace(ascent=ascent, candidate=(site, column, float(scores[site, column])))


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
        taken = one.information @ inverse[np.ix_(at, at)] @ one.information
        information = np.diag(one.information)
        variance = information - np.diag(taken)
        some = ~effects.separate[m] & (agree >= _FEWEST) & (variance > _NIL * information)
        scores[m, some] = one.score[some] / np.sqrt(variance[some])
    return scores


def name_sites(sites: Sequence[SumsAt], columns: int, *, level: float = 0.95) -> Naming:
    """Finds the sites that differ from the others, and in which columns.

    Args:
        sites: Each site's sums.
        columns: d.
        level: Probability that nobody is named where no site differs, in (0, 1).

    Raises:
        NoMaximum: There is no event, or columns are dependent.
    """
    state = Naming.begin(len(sites), columns, level=level)
    while not state.done:
        each = zip(sites, state.coef, strict=True)
        state = state.take([sums_at(coef) for sums_at, coef in each])
    return state
