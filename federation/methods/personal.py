"""Methods that train a whole model for each client, with or without a common one."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from engram.checks import Fault, must
from federation.methods.base import method
from federation.methods.local import KEPT, LocalMethod
from federation.settings.fields import Float, Int, searched
from federation.settings.shared import SharedSettings

if TYPE_CHECKING:
    from engram.aggregates import Aggregate
    from engram.types import LocalRule, LossFn

__all__ = ["Apfl", "Ditto", "LocalOnly", "MrMtl", "OwnModel", "PFedMe"]

_EUCLIDEAN = "1 where server-step is universal, which no factor of updates bears on"


class OwnModel(LocalMethod):
    """A method that serves clients by a model that each keeps."""

    serves: ClassVar[str] = KEPT

    eta: Float = Field(
        0.1,
        gt=0,
        description="step size of a client's local steps",
        json_schema_extra=searched(1e-3, 1, log=True),
    )


@method
class LocalOnly(OwnModel):
    """Every client by itself."""

    name = "local"
    compared = True
    reference = True
    meaning = "each client trains a model by itself; nothing is learned together"
    source = "stochastic gradient descent"

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.federated.local_only import local_only

        return local_only(loss, eta=self.eta)


@method
class Ditto(OwnModel):
    """A common model, and personal ones near it."""

    name = "ditto"
    compared = True
    meaning = "fedavg, and beside it personal models that are held near the common one"
    source = "Li et al., ICML 2021, Alg. 1"

    lambda_: Float = Field(
        1.0,
        ge=0,
        description="weight of the proximal term; 0: local models",
        json_schema_extra=searched(1e-2, 10, log=True),
    )

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.federated.proximal import ditto

        return ditto(loss, eta=self.eta, strength=self.lambda_)


@method
class Apfl(OwnModel):
    """Mixtures of a common model and personal ones."""

    name = "apfl"
    meaning = "mixtures of the common model and a client's own, trained as mixtures"
    source = "Deng et al., 2020, Alg. 1"

    alpha: Float = Field(
        0.5,
        ge=0,
        le=1,
        description="weight of a client's own model; 0: fedavg",
        json_schema_extra=searched(0, 1),
    )
    adaptive: bool = Field(False, description="whether each client learns its weight, from there")

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.federated.apfl import apfl

        return apfl(loss, eta=self.eta, alpha=self.alpha, adaptive=self.adaptive)


@method
class MrMtl(OwnModel):
    """Personal models near their mean."""

    name = "mr-mtl"
    meaning = "personal models that are held near their mean"
    source = "Liu et al., NeurIPS 2022"

    lambda_: Float = Field(
        1.0,
        ge=0,
        description="weight of the proximal term; 0: local models",
        json_schema_extra=searched(1e-2, 10, log=True),
    )

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.federated.proximal import mr_mtl

        return mr_mtl(loss, eta=self.eta, strength=self.lambda_)


@method
class PFedMe(LocalMethod):
    """Personal models near the common one."""

    name = "pfedme"
    compared = True
    serves = KEPT
    meaning = "personal models held near the common one by a proximal term"
    source = "T Dinh et al., NeurIPS 2020, Alg. 1"

    alpha: Float = Field(
        0.01, gt=0, description="inner step size", json_schema_extra=searched(1e-3, 0.1, log=True)
    )
    eta: Float = Field(
        0.1,
        gt=0,
        description="step size of the common model",
        json_schema_extra=searched(1e-3, 1, log=True),
    )
    lambda_: Float = Field(
        15.0,
        gt=0,
        description="weight of the proximal term",
        json_schema_extra=searched(0.5, 50, log=True),
    )
    inner_steps: Int = Field(
        5,
        ge=1,
        le=1000,
        description="steps towards the proximal point",
        json_schema_extra=searched(1, 10),
    )
    server_mix: Float = Field(1.0, gt=0, le=10**6, description="weight of the round's mean (beta)")

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.meta.pfedme import pfedme

        return pfedme(
            loss,
            alpha=self.alpha,
            eta=self.eta,
            strength=self.lambda_,
            inner_steps=self.inner_steps,
        )

    def aggregate(self, shared: SharedSettings) -> "Aggregate":
        """Builds the server's part."""
        del shared
        from engram.aggregates import mixed_mean

        return mixed_mean(self.server_mix)

    @property
    def keeps_memory(self) -> bool:
        """Always: its state is the personal model that it exists for."""
        return True

    def problems(self, shared: SharedSettings) -> Iterator[Fault]:
        """Says what is wrong with settings that depend on each other."""
        yield from super().problems(shared)
        if self.alpha * self.lambda_ >= 2:  # else the inner steps diverge
            text = must("alpha * lambda", self.alpha * self.lambda_, "below 2")
            yield Fault(("alpha", "lambda"), text)
        if self.server_mix != 1 and shared.server_step == "universal":
            # The ensemble makes the same of gradients and of their multiples.
            text = must(f"{self.name}.server-mix", self.server_mix, _EUCLIDEAN)
            yield Fault(("server-mix", "server-step"), text)
