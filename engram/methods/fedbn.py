"""FedBN. Li, Jiang, Zhang, Kamp, Dou. ICLR 2021."""

from engram.core.method import Context, FromMean, Method
from engram.core.settings import method
from engram.core.slots import replace
from engram.methods.fedavg import FedAvg


@method("fedbn", source="Li et al., ICLR 2021, Alg. 1", personal="norm")
class FedBn(FedAvg):
    """FedAvg of all but batch norm, which each client keeps."""

    def build(self, context: Context) -> Method:
        """Builds Alg. 1: FedAvg in whose mean all clients count alike."""
        base = super().build(context)
        return base._replace(server=base.server._replace(merge=FromMean(replace)))
