"""FedYogi. Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. ICLR 2021."""

from torch import Tensor

from engram.core.settings import method
from engram.methods.fedadam import FedAdam


@method("fedyogi", source="Reddi et al., ICLR 2021, Alg. 2")
class FedYogi(FedAdam):
    """FedAvg with Yogi on the server."""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Returns the next v: ``v - (1 - beta2) D^2 sign(v - D^2)``."""
        return v - (1 - self.beta2) * square * (v - square).sign()
