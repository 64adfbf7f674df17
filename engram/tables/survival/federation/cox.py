"""Settings of Cox's model between sites."""

import itertools
from collections.abc import Iterator, Set
from typing import Literal

from pydantic import Field

from engram.core.checks import Fault, clash
from engram.guards.facts import ALWAYS, Fact
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import columns_of
from engram.settings.base import NO_NETWORK, Method, SharedSettings, method
from engram.settings.conflicts import unfit
from engram.settings.fields import Float


def _computed_by_sites(*_: object) -> float:
    raise NotImplementedError  # pairs of subjects are compared where they are


CONCORDANCE = Metric(
    "concordance",
    _computed_by_sites,
    low=0,
    high=1,
    meaning="share of pairs of held-out subjects of a site of whom the one with the higher risk "
    "had the event first",
)
PAIRS = Metric("pairs", _computed_by_sites, low=0, meaning="such pairs that can be compared")
COLUMNS = [
    *columns_of([CONCORDANCE], {"-own": True, "-shared": True, "-personal": True}),
    *columns_of([PAIRS], {"": True}),
]
"""Concordance of a site's own estimate, and of shared and personal coefficients; and the pairs."""


@method
class Cox(Method):
    """Cox's model, stratified by site."""

    name = "cox"
    plug_in = "cox"
    meaning = "a few exchanges: proportional hazards of tables' events, stratified by site"
    source = "Cox, 1972"
    tables = True
    survival = True
    fits_all_rows = True
    unread = NO_NETWORK - {"missing", "aggregation", "secure_threshold"} | {
        *("num_rounds", "eval_every", "checkpoint_every", "max_weight"),
    }

    ties: Literal["efron", "breslow"] = Field(
        "efron", description="how tied events count: efron or breslow"
    )
    firth: bool = Field(
        False,
        description="whether to add Firth's penalty: there is a finite maximum always, also where "
        "a group has no event; sites then send third derivatives, too",
    )
    level: Float = Field(0.95, gt=0, lt=1, description="level of confidence intervals")
    sharing: Literal["none", "adaptive"] = Field(
        "none",
        description="none, or adaptive: sites' own hazard ratios shrink to what they share, and "
        "those that differ are named, by further exchanges",
    )
    exchanges: int = Field(
        60,
        ge=1,
        le=60,
        description="most exchanges of sums; they end when nothing changes, mostly after five. 1: "
        "one exchange of estimates, which is approximate, and takes sites with 30 events, and 5 in "
        "each group of a column of two values",
    )

    @property
    def facts(self) -> Set[Fact]:
        """The server sees each site's sums where these are compared, and else their total alone."""
        compares = {Fact.MEAN} if self.sharing == "adaptive" else set[Fact]()
        return ALWAYS - compares | {Fact.BOUNDED}

    def metrics(self, shared: SharedSettings) -> list[Metric]:
        """Returns the concordance index of held-out subjects."""
        del shared
        return [CONCORDANCE]

    def rounds(self, shared: SharedSettings) -> int:
        """Returns the most exchanges."""
        del shared
        return self.exchanges

    def problems(self, shared: SharedSettings) -> Iterator[Fault]:
        """Also names settings that exclude one another, and indicators of missing values."""
        yield from super().problems(shared)
        special = {"exchanges": 1, "sharing": "adaptive", "firth": True}
        both = [key for key, value in special.items() if getattr(self, key) == value][:2]
        for one, other in itertools.pairwise(both):
            yield clash(other, special[other], f"another with {one} = {special[one]}", one)
        yield from self.without_indicators(shared)
        yield from unfit(shared, self)
