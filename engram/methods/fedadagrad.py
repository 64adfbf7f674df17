"""FedAdagrad. Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. ICLR 2021."""

from torch import Tensor

from engram.core.settings import method
from engram.methods.fedadam import FedAdam, Weight


@method("fedadagrad", source="Reddi et al., ICLR 2021, Alg. 2")
class FedAdagrad(FedAdam):
    """FedAvg with Adagrad on the server."""

    beta1: Weight = 0.0

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Returns the next v: ``v + D^2``."""
        return v + square
