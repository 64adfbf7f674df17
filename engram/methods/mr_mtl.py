"""MR-MTL. Liu, Hu, Wu, Smith. NeurIPS 2022."""

from engram.core.method import Client, Context, FromMean, Method, Phase, Server
from engram.core.settings import Eta, Proximal, method
from engram.core.slots import keep_all, kinds_of, replace, sends, serve_own
from engram.core.tree import add_scaled


@method("mr-mtl", source="Liu et al., NeurIPS 2022")
class MrMtl:
    """Personal models that are held near their mean."""

    eta: Eta = 0.1
    lambda_: Proximal = 1.0

    def build(self, context: Context) -> Method:
        """Builds mean-regularized multi-task learning, without the privacy that its paper adds.

            v <- v - eta (grad L(v) + lambda (v - w_t))

        w_t is the mean of the clients' own models v, which they send.
        """
        gradient = context.objective.gradient

        def direction(work, batches):
            v, away = work["own"], add_scaled(work["own"], -1.0, work["model"])
            return {"own": add_scaled(gradient(v, batches[0]), self.lambda_, away)}, work

        return Method(
            Server({"model": context.network.initial}, sends("model"), FromMean(replace)),
            Client(
                begin=keep_all,
                phases=(Phase(direction, self.eta, affine=True),),
                end=lambda received, work: ({"model": work["own"]}, {"own": work["own"]}),
                sends={"model"},
                start={"own": context.network.initial},
            ),
            serve_own,
            kinds=kinds_of(models="model own"),
        )
