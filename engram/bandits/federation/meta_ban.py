"""Meta-Ban: one turn a round, in which a client chooses by a network adapted to those who agree."""

from collections.abc import Iterator
from typing import Self

from pydantic import Field

from engram.core.checks import Fault, clash
from engram.data.source import Source
from engram.scoring.metrics import Metric
from engram.settings.base import (
    LEAST_REPORTED,
    NO_NETWORK,
    REGRET,
    Method,
    ReportEvery,
    SharedSettings,
    method,
)
from engram.settings.fields import Amount, Count, Float, Int, Whole

TOTAL = REGRET._replace(meaning="cumulative regret of all clients, in the turns they have reported")
"""The metric of a run."""


@method
class MetaBan(Method):
    """The bandit of turns."""

    name = "meta-ban"
    plug_in = "meta-ban"
    meaning = "one turn a round: clients choose by a network that adapts to who agrees"
    source = "Ban et al., 2022, Alg. 1 to 4"
    tables = True
    unread = NO_NETWORK - {"hidden"} | {"max_weight"}

    alpha: Float = Field(0.01, ge=0, description="how much it explores")
    nu: Float = Field(5.0, gt=1, description="group tolerance; larger values give larger groups")
    gamma: Amount = Field(
        0.4,
        lt=1,
        description="the gap between groups: clients agree on an arm whose networks differ by "
        "(nu - 1) / nu gamma at most",
    )
    group_cap: Int = Field(
        4, ge=0, description="most clients in a group, those who agree best; 0: no limit"
    )
    user_eta: Float = Field(1.0, gt=0, description="step size of a client's network (eta_1)")
    meta_eta: Float = Field(1.0, gt=0, description="step size of the server's (eta_2)")
    own_weight: Float = Field(
        10.0,
        gt=0,
        description="weight of a row of the client whose turn it is, beside others' of 1",
    )
    user_steps: Int = Field(4, ge=1, le=1000, description="a client's steps in its turn (J_1)")
    meta_steps: Count = Field(
        8,
        le=1000,
        description="the server's steps in a turn (J_2); in each it asks all clients",
    )
    replay_batch: Int = Field(16, ge=1, le=10**4, description="rows of a step")
    replay_rows: Int = Field(256, ge=1, le=10**5, description="last rows that a client keeps")
    arms: Int = Field(3, ge=2, le=1000, description="tables: arms to choose from (K)")
    user_groups: Whole = Field(
        0,
        description="groups of each data set's clients, whose right arm depends on the image, "
        "too; 0: it is each client's own",
    )
    report_every: ReportEvery = 8

    @property
    def asks(self) -> int:
        """An offer, predictions and the arm to play, and a gradient in each of J_2 steps."""
        return 3 + self.meta_steps

    def metrics(self, shared: SharedSettings) -> list[Metric]:
        """Returns the regret in the turns that clients have reported."""
        del shared
        return [TOTAL]

    def sources(self, shared: SharedSettings) -> list[Source]:
        """Returns one data set, or several with commas, where clients are classes of images."""
        return [shared.source] if self.holds_rows(shared) else shared.source.each

    def holds_rows(self, shared: SharedSettings) -> bool:
        """Whether the data set is a table of arms and rewards, not of classes.

        A user's data set whose clients are read one by one is, as it is on their own nodes.
        """
        return shared.source.kind == "csv" or shared.source.by_client

    def on_a_node(self) -> Self:
        """Returns the method with reports of several turns: fewer would say too much of one."""
        return self.model_copy(update={"report_every": max(self.report_every, LEAST_REPORTED)})

    def problems(self, shared: SharedSettings) -> Iterator[Fault]:
        """Yields the faults of settings that are impossible together."""
        yield from super().problems(shared)
        if not shared.hidden_widths:
            yield clash("hidden", shared.hidden, f"one or more for {self.name}")
