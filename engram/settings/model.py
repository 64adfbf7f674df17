"""Settings of the network and its task."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from engram.core.checks import must
from engram.networks.registry import BUILT_IN, NETWORKS, TORCHVISION, is_known
from engram.scoring.tasks import LOSSES, TASKS
from engram.settings.fields import Float, Int, Settings, nearest, registered, widths


def _network(value: str) -> str:
    if is_known(value):
        return value
    known = [*BUILT_IN, f"{TORCHVISION}NAME", *NETWORKS]
    raise ValueError(must("model", value, f"one of {', '.join(known)}{nearest(value, known)}"))


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
