"""Methods that train a common model, which each client may fine-tune."""

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from federation.methods.base import method
from federation.methods.local import COMMON, SERVED, LocalMethod
from federation.settings.fields import Float, searched
from federation.settings.shared import SharedSettings

if TYPE_CHECKING:
    from engram.aggregates import Aggregate
    from engram.federated.server_optimizers import Variant
    from engram.types import LocalRule, LossFn

__all__ = [
    "CommonModel",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedDyn",
    "FedProx",
    "FedYogi",
    "Scaffold",
]


class CommonModel(LocalMethod):
    """A method that trains a common model, by FedAvg's rule and mean if not by its own."""

    shows: ClassVar[tuple[str, ...]] = (COMMON, SERVED)

    eta: Float = Field(
        0.1,
        gt=0,
        description="step size of a client's local steps",
        json_schema_extra=searched(1e-3, 1, log=True),
    )

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.meta.fedavg import fedavg

        return fedavg(loss, eta=self.eta)

    def aggregate(self, shared: SharedSettings) -> "Aggregate":
        """Builds the server's part."""
        del shared
        from engram.aggregates import mean

        return mean("examples")


@method
class FedAvg(CommonModel):
    """The common model alone."""

    name = "fedavg"
    compared = True
    reference = True
    meaning = "one common model, fine-tuned by each client"
    source = "McMahan et al., AISTATS 2017"


@method
class FedProx(CommonModel):
    """The common model, with local steps that are held near it."""

    name = "fedprox"
    meaning = "fedavg whose local models are held near the common one"
    source = "Li et al., MLSys 2020, Alg. 2"

    mu: Float = Field(
        0.01,
        ge=0,
        description="weight of the proximal term; 0: fedavg",
        json_schema_extra=searched(1e-4, 1, log=True),
    )

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.federated.proximal import fedprox

        return fedprox(loss, eta=self.eta, strength=self.mu)


@method
class Scaffold(CommonModel):
    """The common model, with local steps that are corrected for differences between clients."""

    name = "scaffold"
    meaning = "fedavg whose local steps are corrected by control variates"
    source = "Karimireddy et al., ICML 2020, Alg. 1, option II"
    server_steps = True

    server_eta: Float = Field(
        1.0,
        gt=0,
        description="step size of the server; 1: the mean",
        json_schema_extra=searched(0.1, 2, log=True),
    )

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.federated.scaffold import scaffold

        return scaffold(loss, eta=self.eta)

    def aggregate(self, shared: SharedSettings) -> "Aggregate":
        """Builds the server's part."""
        from engram.federated.scaffold import scaffold_server

        return scaffold_server(self.server_eta, shared.num_clients)


@method
class FedDyn(CommonModel):
    """The common model, with a penalty by which local minima come to agree."""

    name = "feddyn"
    meaning = "fedavg with a dynamic penalty, by which local minima come to agree"
    source = "Acar et al., ICLR 2021, Alg. 1"
    server_steps = True

    alpha: Float = Field(
        0.01,
        gt=0,
        description="weight of the penalty",
        json_schema_extra=searched(1e-3, 1, log=True),
    )

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.federated.feddyn import feddyn

        return feddyn(loss, eta=self.eta, alpha=self.alpha)

    def aggregate(self, shared: SharedSettings) -> "Aggregate":
        """Builds the server's part."""
        from engram.federated.feddyn import feddyn_server

        return feddyn_server(shared.num_clients)


class _Adaptive(CommonModel):
    """FedAvg with an adaptive optimizer on the server."""

    source = "Reddi et al., ICLR 2021, Alg. 2"
    server_steps = True
    variant: ClassVar["Variant"]

    server_eta: Float = Field(
        0.01,
        gt=0,
        description="step size of the server",
        json_schema_extra=searched(1e-3, 1, log=True),
    )
    beta1: Float = Field(
        0.9,
        ge=0,
        lt=1,
        description="weight of the former mean of the changes",
        json_schema_extra=searched(0, 0.99),
    )
    tau: Float = Field(
        0.001,
        gt=0,
        le=1e9,
        description="degree of adaptivity; the smaller, the more",
        json_schema_extra=searched(1e-4, 0.1, log=True),
    )

    def aggregate(self, shared: SharedSettings) -> "Aggregate":
        """Builds the server's part."""
        del shared
        from engram.federated.server_optimizers import server_optimizer

        own = self.model_dump(exclude={"eta", "server_eta"})
        return server_optimizer(self.variant, eta=self.server_eta, **own)


@method
class FedAdagrad(_Adaptive):
    """The common model, with Adagrad on the server."""

    name = "fedadagrad"
    meaning = "fedavg with Adagrad on the server"
    variant = "adagrad"

    beta1: Float = Field(
        0.0,
        ge=0,
        lt=1,
        description="weight of the former mean of the changes",
        json_schema_extra=searched(0, 0.99),
    )


class _MeanSquare(_Adaptive):
    """Adam's or Yogi's step, which have a weighted mean of squares."""

    beta2: Float = Field(
        0.99,
        ge=0,
        lt=1,
        description="weight of the former mean square",
        json_schema_extra=searched(0.9, 0.999),
    )


@method
class FedYogi(_MeanSquare):
    """The common model, with Yogi on the server."""

    name = "fedyogi"
    meaning = "fedavg with Yogi on the server"
    variant = "yogi"


@method
class FedAdam(_MeanSquare):
    """The common model, with Adam on the server."""

    name = "fedadam"
    meaning = "fedavg with Adam on the server"
    variant = "adam"
