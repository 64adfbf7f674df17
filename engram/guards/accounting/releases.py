"""Mechanisms of guards, and the plan of a run on which they depend."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from engram.core.checks import require
from engram.settings.errors import Refused

Unit = Literal["client", "row"]
Neighbors = Literal["added", "replaced"]
Event = Literal["round", "report"]


class Plan(NamedTuple):
    """Decisions of a run before its first round.

    Attributes:
        rounds: Rounds that look at the same data of a client.
        reports: Evaluations whose scores leave clients, where these cost epsilon.
        rate: Probability with which a cohort has a client; 1 where cohorts are known.
        secret: Whether cohorts are drawn in secret, so that each round costs every client as much.
        neighbors: Whether a client that is not in a cohort leaves its place empty, or to another,
            as in secret cohorts of a fixed size.
        rows: Training rows of a client, >= 1.
        batch: Expected rows of a step; infinite where it takes all.
        steps: Local steps of a round.
        turns: Whether each round has rows of its own, the turns of a bandit.
    """

    rounds: int
    reports: int = 0
    rate: float = 1.0
    secret: bool = False
    neighbors: Neighbors = "added"
    rows: int = 1
    batch: float = float("inf")
    steps: int = 1
    turns: bool = False

    @property
    def row_rate(self) -> float:
        """Probability with which a step takes a row; how many rows there are is taken as known."""
        return min(1.0, self.batch / self.rows)


class Release(NamedTuple):
    """A Gaussian mechanism, which the accountant composes with others.

    Attributes:
        multiplier: Standard deviation of the noise over the largest influence of a unit; > 0.
        rate: Probability with which a unit takes part, in secret; 1: it is known to take part.
        times: Number of applications in an event.
        unit: The unit that is hidden: a client, or a single row.
        neighbors: Whether a unit is added or removed, or its data are replaced by any others; then
            samples, if rate is below 1, are of a fixed size.
        each: The event: a round, or a report of scores.
        normal: Whether the noise is normal; else the mechanism is ``1 / (2 multiplier^2)``-
            concentrated differentially private, and no more is known of it.
    """

    multiplier: float
    rate: float = 1.0
    times: int = 1
    unit: Unit = "client"
    neighbors: Neighbors = "added"
    each: Event = "round"
    normal: bool = True

    @property
    def influence(self) -> float:
        """The sum of mu^2 of an event, if it were known who takes part."""
        require(self.multiplier > 0, "noise-multiplier", self.multiplier, "positive")
        require(self.times >= 0, "times", self.times, "at least 0")
        return self.times / self.multiplier**2


def hidden_by(releases: Iterable[Release]) -> tuple[Unit, Neighbors]:
    """Returns the unit that releases hide, and its neighbors.

    Raises:
        Refused: They hide different ones, of which no epsilon is common.
    """
    found = {(release.unit, release.neighbors) for release in releases}
    if len(found) != 1:
        got = ", ".join(" ".join(pair) for pair in sorted(found))
        raise Refused(f"releases must hide the same, got {got}: leave one out of privacy or guards")
    return found.pop()
