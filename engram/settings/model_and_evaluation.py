"""Settings of the network, its task, and its evaluation."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from engram.core.checks import must, require
from engram.networks.registry import BUILT_IN, NETWORKS, TORCHVISION, is_known
from engram.scoring.metrics import METRICS
from engram.scoring.tasks import LOSSES, TASKS
from engram.settings.fields import Float, Int, Settings, nearest, registered, searched, widths


def _network(value: str) -> str:
    if is_known(value):
        return value
    known = [*BUILT_IN, f"{TORCHVISION}NAME", *NETWORKS]
    expected = f"one of {', '.join(known)}, or a name given by engram.model(NETWORK)"
    raise ValueError(must("model", value, f"{expected}{nearest(value, known)}"))


def _task(value: str) -> str:
    if value in TASKS:
        return value
    raise ValueError(must("task", value, f"one of {', '.join(TASKS)}{nearest(value, TASKS)}"))


class ModelSettings(Settings):
    """The network and its task."""

    model: Annotated[str, AfterValidator(_network)] = Field(
        "mlp",
        description="network: mlp (dense layers), cnn (two convolutions, then dense layers) or "
        "linear (softmax regression); cnn-valid (cnn without padding) or resnet (for images); lstm "
        "or transformer (for characters); text-mean or text-cnn (for texts); torchvision:NAME, as "
        "torchvision:resnet18; or one of your own, by its name",
    )
    hidden: Annotated[str, BeforeValidator(widths)] = Field(
        "40,40",
        description="widths of the hidden dense layers, with commas; of the stages of resnet "
        "(16,32,64: ResNet-8), and of the layers of lstm and transformer; of text-mean and "
        "text-cnn the first is that of the embedding",
    )
    task: Annotated[str, AfterValidator(_task)] = Field(
        "classification",
        description="what it learns: classification, regression, survival, multi-label or "
        "next-token",
    )
    loss: Annotated[str, AfterValidator(registered("loss", LOSSES, empty=True))] = Field(
        "",
        description="a loss of your own, by its name, in place of the task's; of survival also cox "
        "or deephit",
    )
    horizon: Float = Field(
        0,
        ge=0,
        description="survival: the time up to which hazards are predicted, in the data's unit; "
        "later events are losses at that time",
    )
    time_cells: Int = Field(
        10,
        ge=2,
        le=1000,
        description="survival: cells of equal width up to horizon, each with an output of the "
        "network",
    )
    norm: Literal["batch", "group"] = Field(
        "batch",
        description="what a network with batch norm has: batch, or group (group norm, of two "
        "groups, in place of it)",
    )
    statistics: Literal["average", "local", "fixed"] = Field(
        "average",
        description="running statistics of batch norm: average (of the clients' ones), local (each "
        "client keeps its own) or fixed (they stay, and are used in training, too)",
    )
    adapters: Literal["shared", "frozen-a", "shared-a", "personal", "dual"] = Field(
        "shared",
        description="low-rank adapters of a peft model: shared; frozen-a (B alone is trained); "
        "shared-a (each client keeps its B); personal (each keeps both: some other layer is "
        "shared); dual (each keeps a second adapter, which adds to the shared one)",
    )
    personal: str = Field(
        "",
        description="parameters that each client keeps to itself, as patterns of their names with "
        "commas, such as head.*; the others are shared. After a !, as in !body.*, they are the "
        "shared ones. Empty: none, or the method's part",
    )

    @property
    def hidden_widths(self) -> tuple[int, ...]:
        """``hidden`` as numbers."""
        return tuple(int(width) for width in self.hidden.split(",") if width.strip())


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
