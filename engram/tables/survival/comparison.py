"""Sites' hazard ratios beside one another: own, personal and shared ones, and who differs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from engram.core.arrays import Array
from engram.tables.effects.profile import OwnEstimate
from engram.tables.effects.summary import shown_numbers, text_lines
from engram.tables.site import Rows
from engram.tables.survival.naming import Naming, name_sites
from engram.tables.survival.own_intervals import own_intervals
from engram.tables.survival.partial import Ties
from engram.tables.survival.shared_intervals import SharedIntervals, shared_intervals
from engram.tables.survival.sharing import Sharing, share
from engram.tables.survival.site_effects import site_sums

MEAN = "weighted mean of the sites"
ALL_BUT_ONE = "all sites but one at most"


class SiteComparison(NamedTuple):
    """Log hazard ratios of M sites with d columns; ``print`` shows hazard ratios as a table."""

    level: float  # of the intervals; and the probability to name nobody who does not differ
    names: Sequence[str]  # of the columns
    sites: Sequence[Any]  # labels of the sites
    own: Sequence[OwnEstimate]  # each site's own estimate
    shared: SharedIntervals  # the stratified fit with its two intervals
    naming: Naming  # which sites differ, in ``differences``
    sharing: Sharing  # personal coefficients, shrunk to what the sites share

    def __str__(self) -> str:
        events = [one.events for one in self.naming.shared.sums]
        title = f"{len(self.sites)} sites, {sum(events):g} events: hazard ratios with intervals of"
        counts = [f"{count:g}" for count in [*events, sum(events), sum(events)]]
        differs = {one[:2]: f"differs, p {one.p_value:.2g}" for one in self.naming.differences}
        lines = [f"{title} level {self.level:g}"]
        for k, name in enumerate(self.names):
            limits = [*(one.limits for one in self.own), *self.shared[1:]]
            marks = [differs.get((m, k), "") for m in range(len(self.sites))]
            coefs = [*(one.coef[k] for one in self.own), self.shared.coef[k], np.nan]
            columns = [
                (name, [*map(str, self.sites), MEAN, ALL_BUT_ONE]),
                ("events", counts),
                ("ratio", _ratios(coefs)),
                ("low", _ratios([each.low[k] for each in limits])),
                ("high", _ratios([each.high[k] for each in limits])),
                ("personal", [*_ratios(self.sharing.coef[:, k]), "", ""]),
                ("", [*marks, "", ""]),
            ]
            lines += ["", *text_lines(columns)]
        return "\n".join(lines)


def _ratios(logs: Sequence[float] | Array) -> list[str]:
    """Writes hazard ratios; ``-`` for unknown ones, also for infinite limits of them."""
    return shown_numbers(np.exp(np.where(np.isfinite(logs), logs, np.nan)), ".3g")


def compare_sites(
    strata: Sequence[Rows],
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
