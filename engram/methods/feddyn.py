"""FedDyn. Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. ICLR 2021."""

from typing import Annotated

from engram.core.method import Client, Context, FromMean, Method, Phase, Server
from engram.core.settings import Step, method
from engram.core.slots import kinds_of, pick, sends, zeros
from engram.core.tree import add_scaled
from engram.methods.fedavg import FedAvg


@method("feddyn", source="Acar et al., ICLR 2021, Alg. 1")
class FedDyn(FedAvg):
    """FedAvg with a dynamic penalty, by which local minima come to agree."""

    alpha: Annotated[Step, "weight of the penalty"] = 0.01

    def build(self, context: Context) -> Method:
        """Builds Alg. 1, of the clients P that replied, out of m; with steps towards (1).

            w <- w - eta (grad L(w) - h_k + alpha (w - w_t))                    (1)
            h_k <- h_k - alpha (w - w_t)                                        after the last step
            h <- h - alpha (|P| / m) mean_P (w_k - w_t),    w_t+1 = mean_P w_k - h / alpha

        At the minimum in (1), h_k is the gradient of the client's loss there; it starts at 0. The
        server holds ``-h / alpha``, in which alpha cancels out.
        """
        gradient, network = context.objective.gradient, context.network
        none = zeros(network.initial)

        def begin(received, kept, batch):
            return received | kept | {"start": received["model"]}

        def direction(work, batches):
            w = work["model"]
            d = add_scaled(gradient(w, batches[0]), -1.0, work["gradient"])
            return {"model": add_scaled(d, self.alpha, add_scaled(w, -1.0, work["start"]))}, work

        def end(received, work):
            away = add_scaled(work["model"], -1.0, work["start"])
            kept = {"gradient": add_scaled(work["gradient"], -self.alpha, away)}
            return {"model": work["model"]}, kept

        def merge(server, mean):
            model, share = mean.slots["model"], mean.clients / context.clients
            away = add_scaled(model, -1.0, server["model"])
            offset = add_scaled(server["offset"], share, away)
            return {"model": add_scaled(model, 1.0, offset), "offset": offset}

        return (
            super()
            .build(context)
            ._replace(
                server=Server(
                    {"model": network.initial, "offset": pick(none, network.shared)},
                    sends("model"),
                    FromMean(merge, steps=True),
                    means={"offset"},
                ),
                client=Client(
                    begin,
                    phases=(Phase(direction, self.eta, affine=True),),
                    end=end,
                    sends={"model"},
                    start={"gradient": none},
                ),
                kinds=kinds_of(models="model start", differences="gradient offset"),
            )
        )
