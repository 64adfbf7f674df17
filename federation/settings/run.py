"""Settings of a run: its length, its evaluations and checkpoints, and its folder."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from federation.settings.fields import Float, Int, Settings, no_bool


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
    start_from: str = Field(
        "",
        description="folder of a run from whose last models this one starts: those of the server, "
        "and what it keeps for each client, where the method has the same; what clients keep, and "
        "means of it, begin anew. Empty: from the initial models",
    )
    out: str = Field("", description="folder of the run's results; empty: a new one in runs/")
    resume: str = Field("", description="folder of a run to resume; empty: none")

    @property
    def least_clients(self) -> int:
        """Fewest clients that a round needs."""
        return max(1, self.min_clients)
