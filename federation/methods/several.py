"""Methods in which a client has to do with several models."""

from functools import partial
from typing import TYPE_CHECKING, Final

from pydantic import Field

from federation.methods.base import method
from federation.methods.common import CommonModel
from federation.methods.local import COMMON, KEPT, SERVED
from federation.settings.fields import Float, Int, searched
from federation.settings.shared import SharedSettings

if TYPE_CHECKING:
    from engram.aggregates import Aggregate
    from engram.models import Model
    from engram.types import LocalRule, LossFn
    from federation.methods.local import Parted

__all__ = ["FedAla", "FedEm", "Ifca", "PFedHn"]

_MODELS: Final = 100  # a client scores each of them


@method
class FedAla(CommonModel):
    """FedAvg whose clients start from mixtures with their last models."""

    name = "fedala"
    meaning = "fedavg whose clients start from learned mixtures of the common model and their last"
    source = "Zhang et al., AAAI 2023, Alg. 1"
    serves = KEPT
    shows = (SERVED,)
    least_steps = 2
    unscaled = frozenset({"weight_share"})

    weight_eta: Float = Field(
        1.0,
        ge=0,
        description="step size of the weights of a client's last model",
        json_schema_extra=searched(0.1, 10, log=True),
    )
    weight_share: Float = Field(
        0.4,
        ge=0,
        lt=1,
        description="share of a client's steps in a round, the first ones, for these weights",
        json_schema_extra=searched(0, 0.9),
    )
    layers: Int = Field(1, ge=1, description="last layers that are mixed; others are as received")

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.federated.fedala import fedala

        return fedala(loss, eta=self.eta, weight_eta=self.weight_eta, share=self.weight_share)

    def in_parts(self, network: "Model", shared: SharedSettings) -> "Parted":
        """Returns what has a rule mix the last layers alone."""
        del shared
        import torch

        from engram.federated.fedala import WEIGHT
        from engram.federated.parts import only
        from engram.models import last_layers
        from engram.tree import part

        names = last_layers(network, part(network.init(torch.Generator())), self.layers)
        return partial(only, names=names | {WEIGHT.mark + name for name in names})


@method
class Ifca(CommonModel):
    """A model for each cluster of clients."""

    name = "ifca"
    meaning = "a model for each cluster of clients, which choose one by their losses"
    source = "Ghosh et al., NeurIPS 2020, Alg. 1, model averaging"
    serves = KEPT
    shows = (SERVED,)
    apart = True

    clusters: Int = Field(
        3,
        ge=1,
        le=_MODELS,
        description="models that clients choose from; 1: fedavg",
        json_schema_extra=searched(1, 6),
    )
    initial_batch_size: Int = Field(50, ge=1, description="rows by which a client chooses")

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.federated.ifca import ifca

        return ifca(loss, eta=self.eta, clusters=self.clusters)

    def aggregate(self, shared: SharedSettings) -> "Aggregate":
        """Builds the server's part."""
        del shared
        from engram.federated.ifca import ifca_server

        return ifca_server()

    @property
    def initial_rows(self) -> int:
        """Rows by which a client chooses."""
        return self.initial_batch_size


@method
class FedEm(CommonModel):
    """Mixtures of common components, with weights of each client's own."""

    name = "fedem"
    meaning = "common components, which each client mixes by weights of its own"
    source = "Marfoq et al., NeurIPS 2021, Alg. 1 and 2"
    serves = KEPT
    shows = (SERVED,)

    components: Int = Field(
        3,
        ge=1,
        le=_MODELS,
        description="models that clients mix; 1: fedavg",
        json_schema_extra=searched(1, 6),
    )

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.federated.fedem import fedem

        return fedem(loss, eta=self.eta, components=self.components)


@method
class PFedHn(CommonModel):
    """A network for each client, made by a hypernetwork on the server."""

    name = "pfedhn"
    meaning = "a hypernetwork on the server makes each client's network of an embedding"
    source = "Shamsian et al., ICML 2021, Alg. 1"
    serves = COMMON
    shows = (SERVED,)
    server_steps = True
    apart = True

    server_eta: Float = Field(
        0.03,
        gt=0,
        description="step size of the hypernetwork and of the embeddings",
        json_schema_extra=searched(1e-3, 0.3, log=True),
    )
    embedding: Int = Field(
        8,
        ge=1,
        le=2**16,
        description="numbers in a client's embedding",
        json_schema_extra=searched(2, 64, log=True),
    )
    layer_width: Int = Field(
        100, ge=1, le=2**16, description="units of each hidden layer on the server"
    )
    layers: Int = Field(3, ge=0, le=64, description="hidden layers on the server; 0: a linear map")

    def network(self, model: "Model", outputs: int) -> "Model":
        """Returns the network, all of which is made by the server."""
        del outputs
        import torch

        names = model.init(torch.Generator()).keys()
        return model._replace(tailored=frozenset(names - model.running - model.personal))

    def aggregate(self, shared: SharedSettings) -> "Aggregate":
        """Builds the server's part."""
        from engram.federated.pfedhn import pfedhn_server
        from federation.streams import Stream, torch_generator

        return pfedhn_server(
            clients=shared.num_clients,
            eta=self.server_eta,
            embedding=self.embedding,
            hidden=self.layer_width,
            layers=self.layers,
            generator=torch_generator(shared.seed, Stream.HYPERNETWORK),
        )
