"""Sites' hazard ratios beside one another: own, personal and shared ones, and who differs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from engram.tables.survival.naming import Naming, name_sites
from engram.tables.survival.own_intervals import OwnEstimate, own_intervals
from engram.tables.survival.partial import Subjects, Ties
from engram.tables.survival.shared_intervals import SharedIntervals, shared_intervals
from engram.tables.survival.sharing import Sharing, share
from engram.tables.survival.site_effects import site_sums

MEAN = "weighted mean of the sites"
ALL_BUT_ONE = "all sites but one at most"
_HEADINGS = ("events", "ratio", "low", "high", "personal")


class SiteComparison(NamedTuple):
    """Log hazard ratios of M sites with d columns; ``print`` shows hazard ratios as a table.

    Attributes:
        level: Level of the intervals; and the probability that nobody is named who does not differ.
        names: Names of the columns.
        sites: Labels of the sites.
        own: Each site's own estimate.
        shared: The stratified fit with its two intervals.
        naming: Which sites differ, in ``differences``.
        sharing: Personal coefficients, shrunk to what the sites share.
    """

    level: float
    names: Sequence[str]
    sites: Sequence[Any]
    own: Sequence[OwnEstimate]
    shared: SharedIntervals
    naming: Naming
    sharing: Sharing

    def __str__(self) -> str:
        width = max(map(len, [MEAN, *self.names, *map(str, self.sites)]))
        events, count = [one.events for one in self.naming.shared.sums], len(self.sites)
        total = sum(events)
        lines = [
            f"{count} sites, {total:g} events: hazard ratios with intervals of level {self.level:g}"
        ]
        differs = {one[:2]: f"  differs, p {one.p_value:.2g}" for one in self.naming.differences}
        for k, name in enumerate(self.names):
            lines += ["", f"{name:<{width}}" + "".join(f"{each:>10}" for each in _HEADINGS)]
            for m, (site, own) in enumerate(zip(self.sites, self.own, strict=True)):
                ratios = own.coef[k], own.limits.low[k], own.limits.high[k], self.sharing.coef[m, k]
                cells = f"{events[m]:>10g}{_ratios(*ratios)}"
                lines.append(f"{site!s:<{width}}{cells}{differs.get((m, k), '')}")
            for label, limits in zip((MEAN, ALL_BUT_ONE), self.shared[1:], strict=True):
                coef = self.shared.coef[k] if label == MEAN else np.nan
                cells = f"{total:>10g}{_ratios(coef, limits.low[k], limits.high[k])}"
                lines.append(f"{label:<{width}}{cells}")
        return "\n".join(lines)


def _ratios(*logs: float) -> str:
    """Writes hazard ratios; ``-`` for unknown ones."""
    return "".join(f"{np.exp(one):>10.3g}" if np.isfinite(one) else f"{'-':>10}" for one in logs)


def compare_sites(
    strata: Sequence[Subjects],
    names: Sequence[str],
    sites: Sequence[Any],
    *,
    ties: Ties = "efron",
    level: float = 0.95,
) -> SiteComparison:
    """Compares the hazard ratios of sites, by their subjects, in intervals of one level.

    Raises:
        NoMaximum: There is no event, columns are dependent, or the likelihood of all sites rises
            without end.
        ValueError: There is one site.
    """
    sums = site_sums(strata, ties)
    naming = name_sites(sums, len(names), level=level, names=names)
    return SiteComparison(
        level,
        names,
        sites,
        [own_intervals(one, ties=ties, level=level) for one in strata],
        shared_intervals(naming.shared, level=level),
        naming,
        share(sums, len(names)),
    )
