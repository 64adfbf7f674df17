"""The network, and what it learns."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from engram.core.checks import must
from engram.networks.registry import BUILT_IN, NETWORKS, TORCHVISION, is_known
from engram.scoring.tasks import LOSSES, TASKS
from engram.settings.fields import Settings, nearest, registered, widths


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
    """The network, and what it learns."""

    model: Annotated[str, AfterValidator(_network)] = Field(
        "mlp",
        description="network: mlp (dense layers), cnn (two convolutions, then dense layers) or "
        "linear (softmax regression); resnet (for images), lstm or transformer (for characters); "
        "text-mean or text-cnn (for texts); torchvision:NAME, such as torchvision:resnet18; or one "
        "of your own, by its name",
    )
    hidden: Annotated[str, BeforeValidator(widths)] = Field(
        "40,40",
        description="widths of the hidden dense layers, with commas; of the stages of resnet "
        "(16,32,64: ResNet-8), and of the layers of lstm and transformer; of text-mean and "
        "text-cnn the first is that of the embedding",
    )
    task: Annotated[str, AfterValidator(_task)] = Field(
        "classification",
        description="what it learns: classification, regression, multi-label or next-token",
    )
    loss: Annotated[str, AfterValidator(registered("loss", LOSSES, empty=True))] = Field(
        "", description="a loss of your own, by its name, in place of the task's"
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
