"""Methods that work on a network's representation: what its last layer takes."""

from functools import partial
from typing import TYPE_CHECKING

from pydantic import Field

from engram.checks import must
from federation.methods.base import method
from federation.methods.common import CommonModel
from federation.methods.local import COMMON, KEPT, SERVED
from federation.methods.personal import OwnModel
from federation.settings.fields import Float, Int, searched
from federation.settings.shared import SharedSettings

if TYPE_CHECKING:
    from engram.aggregates import Aggregate
    from engram.models import Model, Part
    from engram.tasks import Task
    from engram.types import LocalRule, LossFn, Recall
    from federation.methods.local import Parted

__all__ = ["FedDbe", "FedPac", "FedProto", "KnnPer"]


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


@method
class FedPac(CommonModel):
    """A body whose representations agree by class, under heads that clients share as they gain."""

    name = "fedpac"
    meaning = "a common body held to common prototypes, under a mix of all heads for each client"
    source = "Xu et al., ICLR 2023, Alg. 1"
    serves = COMMON
    shows = (SERVED,)
    tasks = ("classification",)
    server_steps = True
    apart = True
    least_steps = 2
    unscaled = frozenset({"head_share"})

    lambda_: Float = Field(
        1.0,
        ge=0,
        description="weight of the distance to prototypes",
        json_schema_extra=searched(1e-2, 10, log=True),
    )
    head_share: Float = Field(
        0.2,
        gt=0,
        lt=1,
        description="share of a client's steps in a round, the first ones, for the head",
        json_schema_extra=searched(0.1, 0.9),
    )

    def network(self, model: "Model", outputs: int) -> "Model":
        """Returns the network with prototypes and statistics beside its parameters."""
        from engram.federated.fedpac import with_statistics
        from engram.models import check_body

        head = _parameters(model, "head")
        check_body(model, _parameters(model, "all"), head)
        if head & model.personal:
            raise ValueError(must("personal", "the last layer", f"a part below it for {self.name}"))
        return with_statistics(model, outputs)._replace(tailored=head)

    def loss(self, network: "Model", task: "Task") -> "LossFn":
        """Builds what local steps lower."""
        from engram.federated.fedpac import aligned_loss

        return aligned_loss(network, task, self.lambda_)

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's steps."""
        from engram.federated.observed import observing

        return observing(loss, eta=self.eta)

    def in_parts(self, network: "Model", shared: SharedSettings) -> "Parted":
        """Returns what has a rule train the head first, and then the body."""
        del shared
        from engram.federated.fedpac import head_and_body

        body = _parameters(network, "all") - network.tailored
        return partial(head_and_body, head=network.tailored, body=body, share=self.head_share)

    def aggregate(self, shared: SharedSettings) -> "Aggregate":
        """Builds the server's part for a network without a head."""
        from engram.federated.fedpac import fedpac_server

        return fedpac_server(frozenset(), shared.num_clients)

    def server(self, network: "Model", shared: SharedSettings) -> "Aggregate":
        """Builds the server's part for a network."""
        from engram.federated.fedpac import fedpac_server

        return fedpac_server(network.tailored, shared.num_clients)


@method
class FedDbe(CommonModel):
    """A common model whose representations mean the same everywhere, with personal biases."""

    name = "feddbe"
    meaning = "fedavg whose mean representation is held in place, with a bias for each client"
    source = "Zhang et al., NeurIPS 2023, Alg. 1"
    serves = COMMON
    shows = (SERVED,)
    tasks = ("classification", "regression", "multi-label")

    kappa: Float = Field(
        10.0,
        ge=0,
        description="weight of the distance between mean representations",
        json_schema_extra=searched(0.1, 100, log=True),
    )

    def network(self, model: "Model", outputs: int) -> "Model":
        """Returns the network with a client's bias in it."""
        del outputs
        from engram.federated.dbe import with_bias

        return with_bias(model)

    def loss(self, network: "Model", task: "Task") -> "LossFn":
        """Builds what local steps lower."""
        from engram.federated.dbe import fed_dbe_loss

        return fed_dbe_loss(network, task, self.kappa)

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.federated.dbe import fed_dbe

        return fed_dbe(loss, eta=self.eta)


@method
class KnnPer(CommonModel):
    """A common model, with a memory of its own rows for each client."""

    name = "knn-per"
    meaning = "fedavg, mixed with a vote of the client's own rows that are nearest"
    source = "Marfoq et al., ICML 2022, eq. 6 to 9"
    serves = KEPT
    shows = (SERVED,)
    tasks = ("classification",)

    lambda_: Float = Field(
        0.5,
        ge=0,
        le=1,
        description="weight of the client's nearest rows; 0: the common model",
        json_schema_extra=searched(0, 1),
    )
    k: Int = Field(
        10, ge=1, description="rows that vote", json_schema_extra=searched(1, 50, log=True)
    )
    scale: Float = Field(
        1.0,
        gt=0,
        description="distance at which a row's vote weighs 1/e of one at no distance",
        json_schema_extra=searched(0.1, 10, log=True),
    )

    def network(self, model: "Model", outputs: int) -> "Model":
        """Returns the network, which must have a representation."""
        del outputs
        from engram.models import represented

        represented(model)
        return model

    def recall(self) -> "Recall":
        """Builds what serves a client by its own training rows."""
        from engram.federated.knn_per import knn_per

        return knn_per(weight=self.lambda_, k=self.k, scale=self.scale)


def _parameters(model: "Model", part: "Part") -> frozenset[str]:
    """Returns the names of a part's parameters, without running statistics."""
    import torch

    from engram.models import part_of
    from engram.tree import part as plain

    return part_of(model, plain(model.init(torch.Generator())), part) - model.running
