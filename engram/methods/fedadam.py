"""FedAdam. Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. ICLR 2021."""

from typing import Annotated

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from engram.core.settings import OnServer, Search, method
from engram.methods.fedadagrad import FedAdagrad, Weight


@method("fedadam", source="Reddi et al., ICLR 2021, Alg. 2")
class FedAdam(FedAdagrad):
    """FedAvg with Adam on the server."""

    beta1: Weight = 0.9
    beta2: Annotated[
        float, Ge(0), Lt(1), Search(0.9, 0.999), OnServer, "weight of the former mean square"
    ] = 0.99

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Returns the next v: ``beta2 v + (1 - beta2) D^2``."""
        return torch.lerp(square, v, self.beta2)
