"""Methods that work on a network's representation: what its last layer takes."""

from typing import TYPE_CHECKING

from pydantic import Field

from federation.methods.base import method
from federation.methods.personal import OwnModel
from federation.settings.fields import Float, searched
from federation.settings.shared import SharedSettings

if TYPE_CHECKING:
    from engram.aggregates import Aggregate
    from engram.models import Model
    from engram.tasks import Task
    from engram.types import LocalRule, LossFn

__all__ = ["FedProto"]


@method
class FedProto(OwnModel):
    """Networks of the clients' own, with the means of each class in common."""

    name = "fedproto"
    meaning = "clients exchange the mean representation of each class, and keep their networks"
    source = "Tan et al., AAAI 2022, Alg. 1"
    part = "all"
    tasks = ("classification",)
    server_steps = True

    lambda_: Float = Field(
        1.0,
        ge=0,
        description="weight of the distance to prototypes; 0: local models",
        json_schema_extra=searched(1e-2, 10, log=True),
    )

    def network(self, model: "Model", outputs: int) -> "Model":
        """Returns the network with the prototypes beside its parameters."""
        from engram.federated.fedproto import with_prototypes

        return with_prototypes(model, outputs)

    def loss(self, network: "Model", task: "Task") -> "LossFn":
        """Builds what local steps lower."""
        from engram.federated.fedproto import fedproto_loss

        return fedproto_loss(network, task, self.lambda_)

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.federated.fedproto import fedproto

        return fedproto(loss, eta=self.eta)

    def aggregate(self, shared: SharedSettings) -> "Aggregate":
        """Builds the server's part."""
        del shared
        from engram.federated.fedproto import fedproto_server

        return fedproto_server()
