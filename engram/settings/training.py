"""Who trains in a round, on which rows, and by which steps."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from engram.data.augmentations import AUGMENTATIONS
from engram.networks.optimizers import SCHEDULES
from engram.settings.fields import Float, Int, Optimizer, Patterns, Settings, registered


class TrainingSettings(Settings):
    """Who trains in a round, on which rows, and by which steps."""

    clients_per_round: Int = Field(
        10,
        ge=1,
        description="clients that train in a round (B); by default at most those there are",
    )
    sampling: Literal["fixed", "poisson", "without-replacement"] = Field(
        "fixed",
        description="how a round's cohort is drawn: fixed (clients-per-round different clients, by "
        "the seed), poisson (each client takes part with probability clients-per-round / "
        "num-clients, independently and in secret, so that a round may have none) or "
        "without-replacement (clients-per-round different ones, in secret)",
    )
    shards: Int = Field(
        1,
        ge=1,
        description="shards of clients (client i is in shard i mod shards), from each of which "
        "the same number trains in a round; with as many shards as nodes, all have equal work",
    )
    local_steps: Int = Field(
        5, ge=1, le=10**5, description="local steps of a client in a round (H)"
    )
    local_epochs: Int = Field(
        0,
        ge=0,
        le=10**4,
        description="epochs of a client in a round, in place of local-steps: each of a step's "
        "batches goes once through all of the client's rows, in random order; the last one may be "
        "smaller. 0: local-steps",
    )
    batch_size: Int = Field(5, ge=1, description="rows in each batch of a local step (K)")
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
    momentum: Float = Field(
        0.9, ge=0, lt=1, description="momentum: its weight; adam and adamw: their beta1"
    )
    weight_decay: Float = Field(
        0.0,
        ge=0,
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
    gradient_clip: Float = Field(
        0.0, ge=0, description="largest norm of a local step's gradient; 0: no bound"
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
