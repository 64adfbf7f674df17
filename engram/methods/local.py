"""Local training: the reference that any federation has to beat."""

from engram.core.method import Client, Context, FromMean, Method, Phase, Served, Server
from engram.core.settings import Eta, method
from engram.core.slots import keep_all, kinds_of, replace, sends


@method("local", source="stochastic gradient descent", compared=True, reference=True)
class Local:
    """Each client trains a model by itself; nothing is learned together."""

    eta: Eta = 0.1

    def build(self, context: Context) -> Method:
        """Builds ``v <- v - eta grad L(v)``. Nothing is sent."""
        gradient = context.objective.gradient

        def direction(work, batches):
            return {"own": gradient(work["own"], batches[0])}, work

        return Method(
            Server({}, sends(), FromMean(replace, steps=True)),
            Client(
                begin=keep_all,
                phases=(Phase(direction, self.eta, affine=True, one_gradient_per_batch=True),),
                end=lambda received, work: ({}, {"own": work["own"]}),
                sends=set(),
                start={"own": context.network.initial},
            ),
            serve=lambda received, kept, trained: Served((kept["own"],), tuned=not trained),
            kinds=kinds_of(models="own"),
        )
