"""Settings of a simulated clock, and of rounds that wait for some of their clients alone."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from engram.core.checks import Fault, clash
from engram.settings.fields import Float, Int, Settings


class TimeSettings(Settings):
    """Speeds of simulated clients, and how long a round waits for them."""

    clock: str = Field(
        "",
        description="simulated time: drawn (each client's speed and bandwidth, by the settings "
        "below) or a CSV file with a line for each client; empty: none",
    )
    step_seconds: Float = Field(
        0.1, gt=0, description="clock drawn: simulated seconds of a local step of the median client"
    )
    bandwidth: Float = Field(
        1e6,
        gt=0,
        description="clock drawn: bytes a second of the median client, in both directions",
    )
    speed_spread: Float = Field(
        0.0,
        ge=0,
        le=5,
        description="clock drawn: standard deviation of the logarithm of clients' speeds, and of "
        "their bandwidths",
    )
    stragglers: Float = Field(
        0.0,
        ge=0,
        le=1,
        description="clock drawn: share of clients that are slowdown times slower, in steps and "
        "bytes",
    )
    slowdown: Float = Field(
        10.0, ge=1, le=1e6, description="clock drawn: how many times slower stragglers are"
    )
    deadline: Float = Field(
        0.0,
        ge=0,
        description="simulated seconds after which a round goes on without the clients that have "
        "not answered; 0: none",
    )
    over_selection: Float = Field(
        0.0,
        ge=0,
        le=10,
        description="clients asked beyond clients-per-round, as a share of it; a round on the "
        "clock ends when clients-per-round have answered, and goes on without the others",
    )
    synchrony: Literal["synchronous", "buffered"] = Field(
        "synchronous",
        description="whether a round waits for all that it asked (synchronous), or for any "
        "buffer-size updates while clients-per-round clients are at work all the time (buffered: "
        "FedBuff; an update counts 1/sqrt(1 + t) if t rounds have ended since its client began)",
    )
    buffer_size: Int = Field(
        5,
        ge=1,
        description="buffered: updates that a round merges (K); by default at most "
        "clients-per-round",
    )

    def asked(self, clients_per_round: int) -> int:
        """Returns how many clients a round asks: ``clients_per_round``, and ``over-selection``."""
        return clients_per_round + round(clients_per_round * self.over_selection)

    def time_problems(self) -> Iterator[Fault]:
        """Yields settings of time that do not go together."""
        fields = type(self).model_fields
        drawn = ("step_seconds", "bandwidth", "speed_spread", "stragglers", "slowdown")
        for name in drawn if self.clock != "drawn" else ():
            if (value := getattr(self, name)) != (default := fields[name].default):
                key = name.replace("_", "-")
                yield clash(key, value, f"{default:g} unless clock is drawn", "clock")
        for key, value in (("deadline", self.deadline), ("over-selection", self.over_selection)):
            if value and not self.clock:
                yield clash(
                    key, value, "0 without a clock; on nodes, timeout ends a round", "clock"
                )
            if value and self.synchrony == "buffered":
                expected = "0 where synchrony is buffered, which waits for nobody"
                yield clash(key, value, expected, "synchrony")
