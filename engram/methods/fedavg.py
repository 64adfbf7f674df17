"""FedAvg. McMahan, Moore, Ramage, Hampson, Aguera y Arcas. AISTATS 2017."""

from engram.core.method import Client, Context, FromMean, Method, Phase, Served, Server
from engram.core.settings import Eta, method
from engram.core.slots import kinds_of, replace, sends


@method("fedavg", source="McMahan et al., AISTATS 2017", compared=True, reference=True)
class FedAvg:
    """One common model."""

    eta: Eta = 0.1

    def build(self, context: Context) -> Method:
        """Builds Alg. 1: ``w <- w - eta grad L(w)`` at clients, the mean by rows at the server."""
        gradient = context.objective.gradient

        def direction(work, batches):
            return {"model": gradient(work["model"], batches[0])}, work

        return Method(
            Server({"model": context.network.initial}, sends("model"), FromMean(replace, "rows")),
            Client(
                begin=lambda received, kept, batch: received,
                phases=(Phase(direction, self.eta, affine=True, one_gradient_per_batch=True),),
                end=lambda received, work: ({"model": work["model"]}, {}),
                sends={"model"},
            ),
            serve=lambda received, kept, trained: Served((received["model"],)),
            kinds=kinds_of(models="model"),
        )
