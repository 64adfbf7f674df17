"""Who trains in a round, on which rows, by which steps, and for how long it is waited."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from engram.core.checks import Fault, clash, must
from engram.data.augmentations import AUGMENTATIONS
from engram.networks.optimizers import SCHEDULES
from engram.settings.fields import (
    Amount,
    Count,
    Float,
    Optimizer,
    Patterns,
    Settings,
    Whole,
    registered,
    wrong_values,
)


class TrainingSettings(Settings):
    """Who trains in a round, on which rows, and by which steps."""

    clients_per_round: Count = Field(
        10, description="clients that train in a round (B); by default at most those there are"
    )
    sampling: Literal["fixed", "poisson", "without-replacement"] = Field(
        "fixed",
        description="how a round's cohort is drawn: fixed (clients-per-round different clients, by "
        "the seed), poisson (each client takes part with probability clients-per-round / "
        "num-clients, independently and in secret, so that a round may have none) or "
        "without-replacement (clients-per-round different ones, in secret)",
    )
    shards: Count = Field(
        1,
        description="shards of clients (client i is in shard i mod shards), from each of which "
        "the same number trains in a round; with as many shards as nodes, all have equal work",
    )
    local_steps: Count = Field(5, le=10**5, description="local steps of a client in a round (H)")
    local_epochs: Whole = Field(
        0,
        le=10**4,
        description="epochs of a client in a round, in place of local-steps: each of a step's "
        "batches goes once through all of the client's rows, in random order; the last one may be "
        "smaller. 0: local-steps",
    )
    batch_size: Count = Field(5, description="rows in each batch of a local step (K)")
    order: Literal["shuffled", "stream"] = Field(
        "shuffled",
        description="rows of a batch: shuffled (drawn at random, with replacement) or stream (the "
        "client's next ones; a round passes for all clients, whether they train or not, and after "
        "the last row comes the first again)",
    )
    augment: Annotated[str, AfterValidator(registered("augment", AUGMENTATIONS, empty=True))] = (
        Field(
            "",
            description="how training rows are changed at random each time that they are drawn: "
            "flip-crop (images), or an augmentation of your own, by its name; empty: not at all",
        )
    )
    optimizer: Optimizer = Field(
        "sgd",
        description="what moves models along the directions of the local steps: sgd, momentum, "
        "adam, adamw, or an optimizer of your own, by its name",
    )
    momentum: Amount = Field(
        0.9, lt=1, description="momentum: its weight; adam and adamw: their beta1"
    )
    weight_decay: Amount = Field(
        0.0,
        description="multiple of the parameters added to their gradients; adamw: subtracted from "
        "them, times the step size",
    )
    eta_by: Patterns = Field(
        "",
        description="step sizes of parameters whose names match patterns, the first that does, as "
        'in 0.*=0.03,*.bias=0.1; in files and Python a table, eta = {"0.*" = 0.03}; others: eta',
    )
    weight_decay_by: Patterns = Field(
        "", description="weight decay of parameters likewise; others: weight-decay"
    )
    gradient_clip: Amount = Field(
        0.0, description="largest norm of a local step's gradient; 0: no bound"
    )
    optimizer_state: Literal["fresh", "kept"] = Field(
        "fresh",
        description="whether optimizers start anew each round (fresh), or each client keeps the "
        "state of its own (kept)",
    )
    schedule: Annotated[str, AfterValidator(registered("schedule", SCHEDULES))] = Field(
        "constant",
        description="the step size over the rounds: constant, cosine (towards 0 after the last "
        "one), step (a tenth after half of them, a hundredth after three quarters), or a schedule "
        "of your own, by its name",
    )

    @property
    def secret_cohorts(self) -> bool:
        """Whether cohorts are drawn in secret, so that each round costs every client as much."""
        return self.sampling != "fixed"


class DrawnClock(Settings):
    """Speeds of simulated clients, which the seed draws."""

    step_seconds: Float = Field(
        0.1, gt=0, description="simulated seconds of a local step of the median client"
    )
    bandwidth: Float = Field(
        1e6, gt=0, description="bytes a second of the median client, in both directions"
    )
    speed_spread: Amount = Field(
        0.0,
        le=5,
        description="standard deviation of the logarithm of clients' speeds and bandwidths",
    )
    stragglers: Amount = Field(0.0, le=1, description="share of clients that are slower")
    slowdown: Float = Field(10.0, ge=1, le=1e6, description="how many times slower they are")


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
        description="simulated time: drawn (each client's speed and bandwidth), with "
        f"numbers as in drawn,stragglers=0.1 ({', '.join(DrawnClock.all_keys())}), or a CSV file "
        "with a line for each client; empty: none",
    )
    deadline: Amount = Field(
        0.0,
        description="simulated seconds after which a round goes on without the clients that have "
        "not answered; 0: none",
    )
    over_selection: Amount = Field(
        0.0,
        le=10,
        description="clients asked beyond clients-per-round, as a share of it; a round on the "
        "clock ends when clients-per-round have answered, and goes on without the others",
    )
    buffer_size: Whole = Field(
        0,
        description="0: a round waits for all that it asked; else for any so many updates (K), "
        "while clients-per-round clients are at work all the time (FedBuff; an update counts "
        "1/sqrt(1 + t) if t rounds have ended since its client began)",
    )

    @property
    def drawn_clock(self) -> DrawnClock | None:
        """Speeds of clients that are drawn; None if a file has them, or there is no clock."""
        return _drawn(self.clock)

    def asked(self, clients_per_round: int) -> int:
        """Returns the number of clients asked in a round, with ``over-selection``."""
        return clients_per_round + round(clients_per_round * self.over_selection)

    def time_problems(self) -> Iterator[Fault]:
        """Yields settings of time that do not go together."""
        for key, value in (("deadline", self.deadline), ("over-selection", self.over_selection)):
            if value and not self.clock:
                yield clash(
                    key, value, "0 without a clock; on nodes, timeout ends a round", "clock"
                )
