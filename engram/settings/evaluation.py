"""Settings of a network's evaluation."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from engram.core.checks import require
from engram.scoring.metrics import METRICS
from engram.settings.fields import Float, Int, Settings, registered, searched


def _metrics(value: object) -> object:
    """Returns names with commas as text; lists of names are natural in Python."""
    if value == "":
        return value
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        return value
    names = [str(name).strip() for name in names]
    require(len(set(names)) == len(names) > 0, "metrics", names, "different names, at least one")
    for name in names:
        registered("metrics", METRICS)(name)
    return ",".join(names)


def _clients(value: object) -> object:
    """Returns clients with commas as text; lists, and a single number, are natural, too."""
    if isinstance(value, list | tuple):
        require(len(value) > 0, "unseen", value, "clients' names or numbers")
        return ",".join(map(str, value))
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class EvaluationSettings(Settings):
    """Rows for fine-tuning, for scores and for validation, and metrics."""

    protocol: Literal["standard", "few-shot"] = Field(
        "standard",
        description="evaluation: standard (personal models are made from training rows alone, and "
        "scored on all test rows) or few-shot (a client fine-tunes on adapt-shots of its test "
        "rows, and is scored on its other ones)",
    )
    validation_fraction: Float = Field(
        0.2,
        ge=0,
        lt=1,
        description="evaluation, standard: share of each client's training rows that it does not "
        "train on, but is scored on as well, to choose settings and rounds by; 0: none",
    )
    unseen_clients: Int = Field(
        0, ge=0, description="evaluation: number of clients that never train, and are scored apart"
    )
    unseen: Annotated[str, BeforeValidator(_clients)] = Field(
        "",
        description="evaluation: which clients these are, by name or number, with commas; empty: "
        "drawn by the seed",
    )
    scored_clients: Int = Field(
        0,
        ge=0,
        description="evaluation: how many of the clients that train are scored, drawn by the seed, "
        "the same in every evaluation; 0: all",
    )
    elsewhere: Int = Field(
        0,
        ge=0,
        description="evaluation: on the test rows of how many other clients, drawn by the seed, "
        "the model of each client that trains is scored, too; 0: none",
    )
    patience: Int = Field(
        0,
        ge=0,
        description="evaluation: stop after so many evaluations in a row without a better score "
        "on validation rows; 0: never",
    )
    adapt_shots: Int = Field(
        5, ge=1, description="evaluation, few-shot: test rows that a client fine-tunes on"
    )
    adapt_steps: Int = Field(
        10,
        ge=0,
        le=10**5,
        description="evaluation: gradient steps of fine-tuning; standard: each on batch-size "
        "training rows; few-shot: each on all adapt-shots rows",
    )
    adapt_part: Literal["all", "head", "lp-ft"] = Field(
        "all",
        description="evaluation: what fine-tuning moves: all parameters, the last layer alone "
        "(head: a linear probe), or that in the first half of the steps, and then all (lp-ft)",
    )
    adapt_lr: Float = Field(
        0.02,
        gt=0,
        description="evaluation: their step size",
        json_schema_extra=searched(1e-3, 1, log=True),
    )
    metrics: Annotated[str, BeforeValidator(_metrics)] = Field(
        "",
        description="evaluation: metrics besides the loss, with commas, the main one first; empty: "
        "those of the task",
    )

    @property
    def unseen_names(self) -> frozenset[str]:
        """Names or numbers of the clients that ``unseen`` lists."""
        return frozenset(name.strip() for name in self.unseen.split(",") if name.strip())

    @property
    def validates(self) -> bool:
        """Whether some of each client's training rows are held out for validation."""
        return self.protocol == "standard" and self.validation_fraction > 0

    def validation_rows(self, count: int) -> int:
        """Returns the number of validation rows among ``count`` training rows.

        It is one at least, but none of a single row, which the client trains on.
        """
        if not self.validates or count < 2:
            return 0
        return max(1, min(count - 1, round(self.validation_fraction * count)))
