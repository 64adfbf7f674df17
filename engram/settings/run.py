"""Settings of a run: its length, its evaluations and checkpoints, and its folder."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

from engram.core.checks import require
from engram.settings.fields import Float, Int, Settings, no_bool


def _numbers(value: object) -> str:
    text = str(value).replace(" ", "")
    ok = not isinstance(value, bool) and re.fullmatch(r"(\d{1,6}(,\d{1,6})*)?", text, re.ASCII)
    require(bool(ok), "without", value, "clients' numbers with commas, such as 3,5")
    return ",".join(map(str, sorted({int(number) for number in text.split(",") if number})))


class Folders(Settings):
    """Folders of runs, which commands and functions take by arguments of their own."""

    out: str = Field("", description="folder of the run's results; empty: a new one in runs/")
    resume: str = Field("", description="folder of a run to resume; empty: none")
    start_from: str = Field(
        "",
        description="folder of a run from whose last models this one starts: those of the server, "
        "and what it keeps for each client, where the method has the same; what clients keep, and "
        "means of it, begin anew. Empty: from the initial models",
    )


class RunSettings(Settings):
    """Length of a run, its evaluations and checkpoints, and its seed."""

    num_rounds: Int = Field(100, ge=1, description="communication rounds")
    eval_every: Int = Field(
        10, ge=1, description="rounds between evaluations; the last round is always evaluated"
    )
    checkpoint_every: Int = Field(10, ge=1, description="rounds between checkpoints")
    seed: Annotated[int, BeforeValidator(no_bool)] = Field(
        0, ge=0, lt=2**32, description="root of every random stream"
    )
    timeout: Float = Field(
        3600.0,
        gt=0,
        le=10**8,
        description="seconds that a round waits for replies before it goes on without them",
    )
    min_clients: Int = Field(
        0,
        ge=0,
        description="fewest clients with which a run begins, and fewest replies of a round; with "
        "fewer the run stops, and can be resumed; 0: on nodes, a run begins with all that have "
        "enough rows, and a round needs one",
    )
    participation: str = Field(
        "",
        description="folder of a run whose participation a run in one process repeats: in each "
        "round, the clients that took part there; empty: cohorts are drawn",
    )
    without: Annotated[str, BeforeValidator(_numbers)] = Field(
        "",
        description="clients that have no part in the run, as if they had never been members, by "
        "number, with commas; empty: none",
    )

    @property
    def withdrawn(self) -> frozenset[int]:
        """``without`` as numbers."""
        return frozenset(int(number) for number in self.without.split(",") if number)

    @property
    def least_clients(self) -> int:
        """Fewest clients that a round needs."""
        return max(1, self.min_clients)
