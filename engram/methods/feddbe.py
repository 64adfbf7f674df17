"""FedDBE. Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan. NeurIPS 2023."""

from typing import Annotated

import torch
from annotated_types import Ge

from engram.core.method import Client, Context, FromMean, Method, Phase, Served, Server
from engram.core.settings import Eta, Search, method
from engram.core.slots import Tally, kinds_of, sends
from engram.core.tree import add_scaled


@method(
    "feddbe",
    source="Zhang et al., NeurIPS 2023, Alg. 1",
    tasks=("classification", "regression", "multi-label"),
)
class FedDbe:
    """FedAvg whose mean representation is held in place, with a bias for each client."""

    eta: Eta = 0.1
    kappa: Annotated[
        float,
        Ge(0),
        Search(0.1, 100, log=True),
        "weight of the distance between mean representations",
    ] = 10.0

    def build(self, context: Context) -> Method:
        """Builds Alg. 1: the network w and the client's bias b move along the gradient of a loss.

            L(w, b) + kappa / 2 |mean of the batch's z - common mean|^2 / width

        where the last layer takes z + b. The paper's loss has no division by the width; the
        authors' code has it, and with it kappa means the same for all networks. The mean is the
        batch's own, their momentum mu being 1: a mean over former steps would be of former models.

        Alg. 1 has every client send its mean representation before the first round. Here the first
        cohort, drawn at random, stands for all clients: in the first round kappa counts nothing,
        and a client also sends the mean z of the rows that its steps have drawn, each batch before
        its step (in the authors' code, too, clients train meanwhile).

        Raises:
            ValueError: If the network has no representation.
        """
        network = context.network
        network.require_representation()
        none = network.zeros(network.width)
        tally = Tally({"mean": none})

        def loss(both, common, batch):
            outputs, z = network.represent(both["model"], batch, both["bias"])
            mean = z.mean(0)
            far = (mean - common["mean"]).square().mean() * common["known"]
            value = context.objective.criterion(outputs, batch) + self.kappa / 2 * far
            return value, {"mean": mean}

        gradient = context.objective.differentiate(loss)

        def direction(work, batches):
            both = {"model": work["model"], "bias": work["bias"]["b"]}
            d, seen = gradient(both, work["common"], batches[0])
            moved = {"model": d["model"], "bias": {"b": d["bias"]}}
            return moved, work | {"tally": tally.add(work["tally"], seen)}

        def end(received, work):
            sent = {"model": work["model"], "seen": tally.mean(work["tally"])}
            return sent, {"bias": work["bias"]}

        def merge(server, mean):
            found = {"mean": mean.slots["seen"]["mean"], "known": torch.ones(())}
            first = 1 - float(server["common"]["known"])
            return {
                "model": mean.slots["model"],
                "common": add_scaled(server["common"], first, found),
            }

        def serve(received, kept, trained):
            return Served((received["model"],), shift=kept["bias"]["b"], tuned=not trained)

        start = {"model": network.initial, "common": {"mean": none, "known": torch.zeros(())}}
        return Method(
            Server(start, sends("model", "common"), FromMean(merge, "rows", steps=True)),
            Client(
                begin=lambda received, kept, batch: received | kept | {"tally": tally.start},
                phases=(Phase(direction, self.eta, one_gradient_per_batch=True),),
                end=end,
                sends={"model", "seen"},
                start={"bias": {"b": none}},
            ),
            serve,
            kinds=kinds_of(models="model", statistics="bias common tally seen"),
        )
