"""MOLARB: a bandit at each site, and an exchange of estimates after each batch of turns."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from engram.core.checks import Fault, clash
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import columns_of
from engram.settings.base import LEAST_REPORTED, REGRET, ReportEvery, SharedSettings, method
from engram.settings.fields import Int
from engram.tables.federation.molar import Thresholded

(REGRETS,) = columns_of(
    [REGRET._replace(meaning="cumulative regret, mean over sites that have reported turns")],
    {"": False},
)
"""The regrets that sites report, and what a run is scored by."""

_MOST_TURNS = 2**16  # some 50 MB for each site


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
    first_batch: Int = Field(
        1,
        ge=1,
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

    def policy(self, shared: SharedSettings) -> Any:
        """Builds the policy of sites and server."""
        from engram.tables.bandits.policies import molar_bandit

        return molar_bandit(
            c=self.threshold_scale,
            option=self.thresholding,
            history=self.history,
            max_weight=shared.max_weight,
        )

    def problems(self, shared: SharedSettings) -> Iterator[Fault]:
        """Yields the faults of settings that depend on each other."""
        yield from super().problems(shared)
        most = (_MOST_TURNS // self.first_batch).bit_length()
        if shared.num_rounds > most:
            expected = f"at most {most} for {self.name} with first-batch = {self.first_batch}"
            yield clash("num-rounds", shared.num_rounds, expected, "first-batch")
