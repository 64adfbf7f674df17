"""MOLAR: one exchange of estimates between sites that hold tables."""

from collections.abc import Iterator
from math import inf
from typing import ClassVar, Literal, Self

from pydantic import Field

from engram.core.checks import Fault, clash
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import columns_of
from engram.scoring.tasks import CLASSIFICATION
from engram.settings.base import (
    LEAST_REPORTED,
    NO_NETWORK,
    REGRET,
    Method,
    ReportEvery,
    SharedSettings,
    method,
)
from engram.settings.conflicts import unfit
from engram.settings.fields import Count, Float, Int

_MOST_TURNS = 2**16  # some 50 MB for each site
_LOSS = CLASSIFICATION.metric._replace(meaning="mean held-out loss", most=inf)
COLUMNS = columns_of([_LOSS], {"-own": True, "-shared": True, "-personal": True})
"""Held-out losses of a site's own estimate, of what is shared, and of the site's coefficients."""


_PRIVATE = {"privacy", "clip", "noise_multiplier", "epsilon", "delta"}


class Thresholded(Method):
    """Settings of methods that share coefficients unless a site's differ clearly.

    Attributes:
        noised: Values of settings with which nothing leaves a site but noisy sums and what follows
            from them, where privacy is example.
    """

    tables = True
    unread = NO_NETWORK - _PRIVATE
    noised: ClassVar[dict[str, str]]

    thresholding: Literal["hard", "soft"] = Field(
        "hard", description="hard (a coefficient is shared or the site's own) or soft"
    )
    threshold_scale: Float = Field(
        1.0, ge=0, description="c, scale of the threshold; 0: every site keeps its own estimate"
    )
    intercept: bool = Field(True, description="whether models have an intercept")

    def problems(self, shared: SharedSettings) -> Iterator[Fault]:
        """Adds the settings that noise on a site's sums does not cover."""
        yield from super().problems(shared)
        yield from unfit(shared, self)
        if shared.privacy not in ("none", "example"):
            yield clash("privacy", shared.privacy, f"none or example for {self.name}")
        for name, value in self.noised.items() if shared.privacy == "example" else ():
            if (given := getattr(self, name)) != value:
                key, expected = name.replace("_", "-"), f"{value} where privacy is example"
                yield clash(key, given, expected, "privacy")


@method
class Molar(Thresholded):
    """The regression."""

    name = "molar"
    plug_in = "molar"
    meaning = "one exchange: a linear model for each site's table, most of it shared by all sites"
    source = "Huang et al., 2024, Alg. 1 and 4"
    fits_all_rows = True
    remembered = ("coef", "low", "high", "own", "shared")  # the column's, its interval; the others'
    noised: ClassVar[dict[str, str]] = {"family": "linear", "sharing": "median"}
    unread = Thresholded.unread - {"missing"} | {"num_rounds", "eval_every", "checkpoint_every"}

    family: Literal["linear", "logistic", "poisson"] = Field(
        "linear", description="the model: linear, logistic (classes 0 and 1) or poisson (counts)"
    )
    site_weights: Literal["precision", "equal"] = Field(
        "precision",
        description="weights of the median: precision (rows over noise variance, as sites claim "
        "them) or equal (a minority of sites cannot move it far, whatever they claim)",
    )
    level: Float = Field(0.95, gt=0, lt=1, description="level of confidence intervals")
    sharing: Literal["median", "adaptive"] = Field(
        "median",
        description="median (the paper's one exchange) or adaptive (sites shrink around what is "
        "shared: for few rows, and for rare classes)",
    )
    exchanges: int = Field(
        30,
        ge=2,
        le=100,
        description="with sharing=adaptive: most exchanges; they end when nothing changes, and "
        "linear models need one",
    )

    def metrics(self, shared: SharedSettings) -> list[Metric]:
        """Returns the held-out loss: the squared error, or the family's deviance."""
        del shared
        return [_LOSS]

    def rounds(self, shared: SharedSettings) -> int:
        """Returns the most exchanges: one, unless sharing is adaptive and the family not linear."""
        del shared
        return self.exchanges if self.sharing == "adaptive" and self.family != "linear" else 1

    def problems(self, shared: SharedSettings) -> Iterator[Fault]:
        """Also names a threshold of 0, by which adaptive sharing would share nothing."""
        yield from super().problems(shared)
        yield from self.without_indicators(shared)
        if self.sharing == "adaptive" and self.threshold_scale == 0:
            yield clash("threshold-scale", 0, "above 0 with sharing=adaptive", "sharing")


(REGRETS,) = columns_of(
    [REGRET._replace(meaning="cumulative regret, mean over sites that have reported turns")],
    {"": False},
)
"""The regrets that sites report, and what a run is scored by."""


@method
class MolarBandit(Thresholded):
    """The bandit of batches."""

    name = "molar-bandit"
    plug_in = "molar-bandit"
    meaning = "one exchange a batch: sites choose among arms, and learn from each other"
    source = "Huang et al., 2024, Alg. 2 and 5"
    decisive = frozenset({"num_rounds"})  # fixes the simulated horizon, hence the data
    family: ClassVar[Literal["linear"]] = "linear"
    turns = True
    # With other values a turn is in several estimates, or shows in their numbers of rows.
    noised: ClassVar[dict[str, str]] = {"bandit_model": "C", "history": "batch"}

    bandit_model: Literal["C", "P"] = Field(
        "C",
        description="C (each arm has a context; a site has one parameter) or P (a site sees one "
        "context, and each arm has a parameter)",
    )
    arms: Int = Field(3, ge=2, le=1000, description="arms to choose from (K)")
    first_batch: Count = Field(
        1,
        le=_MOST_TURNS,
        description="turns in the first batch (H0); batches double from the second on, and "
        "num-rounds is how many there are",
    )
    history: Literal["batch", "all"] = Field(
        "batch",
        description="rows that a site's own step looks at: those since its last estimate, or all "
        "it ever saw",
    )
    report_every: ReportEvery = 8

    def horizon(self, shared: SharedSettings) -> int:
        """Returns the number of turns in all rounds."""
        return self.first_batch << (shared.num_rounds - 1)

    def metrics(self, shared: SharedSettings) -> list[Metric]:
        """Returns the regret in the turns that clients have reported."""
        del shared
        return [REGRETS.metric]

    @property
    def parameters(self) -> int:
        """Number of a site's parameters: 1 under Model-C, K under Model-P."""
        return 1 if self.bandit_model == "C" else self.arms

    def on_a_node(self) -> Self:
        """Returns the method with reports of several turns: fewer would say too much of one."""
        return self.model_copy(update={"report_every": max(self.report_every, LEAST_REPORTED)})

    def problems(self, shared: SharedSettings) -> Iterator[Fault]:
        """Yields the faults of settings that depend on each other."""
        yield from super().problems(shared)
        most = (_MOST_TURNS // self.first_batch).bit_length()
        if shared.num_rounds > most:
            expected = f"at most {most} for {self.name} with first-batch = {self.first_batch}"
            yield clash("num-rounds", shared.num_rounds, expected, "first-batch")
