"""Ditto. Li, Hu, Beirami, Smith. ICML 2021."""

from engram.core.method import Client, Context, FromMean, Method, Phase, Server
from engram.core.settings import Eta, Proximal, method
from engram.core.slots import kinds_of, replace, sends, serve_own
from engram.core.tree import add_scaled


@method("ditto", source="Li et al., ICML 2021, Alg. 1", compared=True)
class Ditto:
    """FedAvg, and beside it personal models that are held near the common one."""

    eta: Eta = 0.1
    lambda_: Proximal = 1.0

    def build(self, context: Context) -> Method:
        """Builds Alg. 1 with FedAvg as the solver of the common model w; v is the client's own.

            w <- w - eta grad L(w)
            v <- v - eta (grad L(v) + lambda (v - w_t))

        Both steps use the same batch. A client is served by v.
        """
        gradient = context.objective.gradient

        def begin(received, kept, batch):
            return kept | {"model": received["model"], "start": received["model"]}

        def direction(work, batches):
            v, away = work["own"], add_scaled(work["own"], -1.0, work["start"])
            pulled = add_scaled(gradient(v, batches[0]), self.lambda_, away)
            return {"model": gradient(work["model"], batches[0]), "own": pulled}, work

        return Method(
            Server({"model": context.network.initial}, sends("model"), FromMean(replace)),
            Client(
                begin,
                phases=(Phase(direction, self.eta, affine=True),),
                end=lambda received, work: ({"model": work["model"]}, {"own": work["own"]}),
                sends={"model"},
                start={"own": context.network.initial},
            ),
            serve_own,
            kinds=kinds_of(models="model own start"),
        )
