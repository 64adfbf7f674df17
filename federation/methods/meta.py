"""Meta-learning: the common model is trained for being personalized by a few steps."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from federation.methods.base import method
from federation.methods.local import LocalMethod
from federation.settings.fields import Float, Int, searched

if TYPE_CHECKING:
    from engram.types import LocalRule, LossFn

__all__ = ["LocalMoml", "PerFedAvg"]

Hessian = Literal["exact", "first-order", "finite-difference"]
_HESSIAN = (
    "how the meta-gradient treats the Hessian: exact, first-order (leaves it out) or "
    "finite-difference"
)


@method
class LocalMoml(LocalMethod):
    """The memory-based method."""

    name = "local-moml"
    compared = True
    meaning = "memory-based meta-learning; memory reset or carried"
    source = "Wang et al., JMLR 2023, Alg. 3"

    alpha: Float = Field(
        0.01,
        ge=0,
        description="adaptation step size",
        json_schema_extra=searched(1e-3, 1, log=True),
    )
    beta: Float = Field(
        0.5,
        gt=0,
        le=1,
        description="weight of the newest adaptation in the memory",
        json_schema_extra=searched(0.05, 1),
    )
    eta: Float = Field(
        0.05,
        gt=0,
        description="step size of the common model",
        json_schema_extra=searched(1e-3, 1, log=True),
    )
    hessian: Hessian = Field("first-order", description=_HESSIAN)
    memory: Literal["reset", "carry"] = Field(
        "reset",
        description="whether memories start anew each round (cross-device) or are carried over "
        "(cross-silo)",
    )
    initial_batch_size: Int = Field(5, ge=1, description="rows that a memory starts from (K0)")

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.meta.local_moml import local_moml

        return local_moml(
            loss, alpha=self.alpha, beta=self.beta, eta=self.eta, hessian=self.hessian
        )

    @property
    def keeps_memory(self) -> bool:
        """Whether memories are carried over."""
        return self.memory == "carry"

    @property
    def initial_rows(self) -> int:
        """Rows that a memory starts from."""
        return self.initial_batch_size

    @property
    def rows_needed(self) -> dict[str, int]:
        """A client should have as many rows as its memory starts from."""
        return {f"{self.name}.initial-batch-size": self.initial_batch_size}


@method
class PerFedAvg(LocalMethod):
    """Meta-learning without memory."""

    name = "per-fedavg"
    compared = True
    meaning = "meta-learning without memory: local-moml with beta = 1"
    source = "Fallah et al., NeurIPS 2020; Wang et al., JMLR 2023, Sec. 5.1"

    alpha: Float = Field(
        0.01,
        ge=0,
        description="adaptation step size",
        json_schema_extra=searched(1e-3, 1, log=True),
    )
    eta: Float = Field(
        0.05,
        gt=0,
        description="step size of the common model",
        json_schema_extra=searched(1e-3, 1, log=True),
    )
    hessian: Hessian = Field("first-order", description=_HESSIAN)

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.meta.local_moml import per_fedavg

        return per_fedavg(loss, alpha=self.alpha, eta=self.eta, hessian=self.hessian)
