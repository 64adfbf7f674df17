"""FedBABU. Oh, Kim, Yun. ICLR 2022."""

from engram.core.method import Context, Method, Phase, Served
from engram.core.settings import method
from engram.methods.fedavg import FedAvg


@method("fedbabu", source="Oh et al., ICLR 2022, Alg. 1")
class FedBabu(FedAvg):
    """FedAvg under a last layer that stays as it began until clients fine-tune."""

    def build(self, context: Context) -> Method:
        """Builds Alg. 1: FedAvg's steps of the body alone; fine-tuning trains the head, too.

        Raises:
            ValueError: If there is nothing below the network's head.
        """
        context.network.require_body()
        network, gradient = context.network, context.objective.gradient
        body = network.learned - network.head

        def direction(work, batches):
            return {"model": gradient(work["model"], batches[0], body)}, work

        base = super().build(context)
        phase = Phase(direction, self.eta, affine=True, one_gradient_per_batch=True)
        return base._replace(
            client=base.client._replace(phases=(phase,)),
            serve=lambda received, kept, trained: Served((received["model"],), tuned=True),
        )
