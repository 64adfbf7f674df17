"""SCAFFOLD. Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. ICML 2020, with its equations."""

from typing import Annotated

import torch
from annotated_types import Gt

from engram.core.method import Client, Context, FromMean, Method, Phase, Server
from engram.core.settings import OnServer, Search, method
from engram.core.slots import kinds_of, pick, sends, zeros
from engram.core.tree import add_scaled, interpolate, multiplied
from engram.methods.fedavg import FedAvg


@method("scaffold", source="Karimireddy et al., ICML 2020, Alg. 1, option II")
class Scaffold(FedAvg):
    """FedAvg with local steps corrected by control variates."""

    server_eta: Annotated[
        float, Gt(0), Search(0.1, 2, log=True), OnServer, "step size of the server; 1: the mean"
    ] = 1.0

    def build(self, context: Context) -> Method:
        """Builds Alg. 1, of the clients S that replied, out of N.

            y <- y - eta (g(y) - c_i + c)                                       (3)
            c_i+ = c_i - c + (x - y) / (K eta)                                  (4, option II)
            x <- x + server_eta mean_S (y - x),    c <- c + |S| / N mean_S (c_i+ - c_i)

        By (3), (4) is the mean of the round's K gradients g, which is how it is computed: so it
        does not depend on the optimizer that takes the place of (3). If a client's reply is lost
        for good, c lacks its change; if it leaves, c_i stays in c. Control variates are of shared
        parameters alone.
        """
        gradient, shared = context.objective.gradient, context.network.shared
        none = zeros(pick(context.network.initial, shared))

        def begin(received, kept, batch):
            away = add_scaled(received["control"], -1.0, kept["own-control"])
            sums = {"sum": zeros(kept["own-control"]), "steps": torch.zeros(())}
            return {"model": received["model"], "correction": away} | kept | sums

        def direction(work, batches):
            now = gradient(work["model"], batches[0])
            sums = {"sum": add_scaled(work["sum"], 1.0, now), "steps": work["steps"] + 1}
            return {"model": add_scaled(now, 1.0, work["correction"])}, work | sums

        def end(received, work):
            mean = multiplied(work["sum"], 1 / work["steps"])
            change = add_scaled(mean, -1.0, work["own-control"])
            return {"model": work["model"], "change": change}, {"own-control": mean}

        def merge(server, mean):
            participation = mean.clients / context.clients
            return {
                "model": interpolate(server["model"], mean.slots["model"], self.server_eta),
                "control": add_scaled(server["control"], participation, mean.slots["change"]),
            }

        return (
            super()
            .build(context)
            ._replace(
                server=Server(
                    {"model": context.network.initial, "control": none},
                    sends("model", "control"),
                    FromMean(merge, steps=True),
                    means={"control"},
                ),
                client=Client(
                    begin,
                    phases=(Phase(direction, self.eta, affine=True),),
                    end=end,
                    sends={"model", "change"},
                    start={"own-control": none},
                ),
                kinds=kinds_of(
                    models="model",
                    differences="control own-control correction sum change",
                    statistics="steps",
                ),
            )
        )
