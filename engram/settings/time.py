"""Settings of a simulated clock, and of rounds that wait for some of their clients alone."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError

from engram.core.checks import Fault, clash, must
from engram.settings.fields import Float, Int, Settings, wrong_values


class DrawnClock(Settings):
    """Speeds of simulated clients, which the seed draws."""

    step_seconds: Float = Field(
        0.1, gt=0, description="simulated seconds of a local step of the median client"
    )
    bandwidth: Float = Field(
        1e6, gt=0, description="bytes a second of the median client, in both directions"
    )
    speed_spread: Float = Field(
        0.0,
        ge=0,
        le=5,
        description="standard deviation of the logarithm of clients' speeds and bandwidths",
    )
    stragglers: Float = Field(0.0, ge=0, le=1, description="share of clients that are slower")
    slowdown: Float = Field(10.0, ge=1, le=1e6, description="how many times slower they are")
    hours: Float = Field(
        24.0, ge=0.01, le=24, description="hours of a day in which a client works, from a drawn one"
    )


def _drawn(text: str) -> DrawnClock | None:
    """Reads ``drawn``, or ``drawn,stragglers=0.1``; None for the name of a file."""
    name, *parts = (part.strip() for part in text.split(","))
    if name != "drawn":
        return None
    given = dict(part.partition("=")[::2] for part in parts)
    known = DrawnClock.all_keys()
    if given.keys() - {*known}:
        raise ValueError(must("clock", text, f"drawn with some of {', '.join(known)}"))
    try:
        return DrawnClock.model_validate(given)
    except ValidationError as error:
        faults = (fault.text for fault in wrong_values(error, "clock."))
        raise ValueError("; ".join(faults)) from error


def _clock(text: str) -> str:
    _drawn(text)
    return text


class TimeSettings(Settings):
    """Speeds of simulated clients, and how long a round waits for them."""

    clock: Annotated[str, AfterValidator(_clock)] = Field(
        "",
        description="simulated time: drawn (each client's speed, bandwidth and hours), with "
        f"numbers as in drawn,stragglers=0.1 ({', '.join(DrawnClock.all_keys())}), or a CSV file "
        "with a line for each client; empty: none",
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
    buffer_size: Int = Field(
        0,
        ge=0,
        description="0: a round waits for all that it asked; else for any so many updates (K), "
        "while clients-per-round clients are at work all the time (FedBuff; an update counts "
        "1/sqrt(1 + t) if t rounds have ended since its client began)",
    )

    @property
    def drawn_clock(self) -> DrawnClock | None:
        """Speeds of clients that are drawn; None if a file has them, or there is no clock."""
        return _drawn(self.clock)

    def asked(self, clients_per_round: int) -> int:
        """Returns how many clients a round asks: ``clients_per_round``, and ``over-selection``."""
        return clients_per_round + round(clients_per_round * self.over_selection)

    def time_problems(self) -> Iterator[Fault]:
        """Yields settings of time that do not go together."""
        for key, value in (("deadline", self.deadline), ("over-selection", self.over_selection)):
            if value and not self.clock:
                yield clash(
                    key, value, "0 without a clock; on nodes, timeout ends a round", "clock"
                )
            if value and self.buffer_size:
                expected = "0 where buffer-size is above 0, and a round waits for nobody"
                yield clash(key, value, expected, "buffer-size")
