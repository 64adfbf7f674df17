"""FedProto. Tan, Long, Liu, Zhou, Lu, Jiang, Zhang. AAAI 2022. Equations are of that paper."""

from typing import Annotated

from engram.core.class_statistics import (
    claims_of,
    class_statistics,
    distance_to_class_means,
    empty,
    updated,
)
from engram.core.method import Client, Context, FromMean, Method, Phase, Served, Server
from engram.core.settings import Eta, Strength, method
from engram.core.slots import Tally, kinds_of, sends


@method(
    "fedproto", source="Tan et al., AAAI 2022, Alg. 1", tasks=("classification",), personal="all"
)
class FedProto:
    """Clients exchange the mean representation of each class, and keep their networks."""

    eta: Eta = 0.1
    lambda_: Annotated[Strength, "weight of the distance to prototypes; 0: local models"] = 1.0

    def build(self, context: Context) -> Method:
        """Builds Alg. 1, whose clients keep all of w, with the loss (7) and the server's means (6).

            w <- w - eta grad (L(w) + lambda mean over rows of |z - c_y|^2 / width)
            c_j = sum_i |D_ij| c_ij / sum_i |D_ij|                                       (6)

        z is a row's representation and c_y its class's prototype, the mean z of class y. The paper
        compares means of classes; rows are compared here, as in the authors' code, which also
        divides by the width. (6) divides by the number of clients that have class j, too, which
        would shrink the mean to nothing as clients become more: that factor is left out. Statistics
        are of the rows that steps draw, each represented by the network before its step: a pass
        over all rows after the last step, as in Alg. 1, would cost as much as an epoch.

        A client is served by its network; the paper also allows the nearest prototype, which a
        class that nobody has seen lacks.

        Raises:
            ValueError: If the network has no representation.
        """
        network = context.network
        network.require_representation()
        none = empty(network, context.outputs)
        tally = Tally(none)

        def loss(w, known, batch):
            outputs, z = network.represent(w, batch, None)
            far = distance_to_class_means(z, batch[1], known)
            seen = class_statistics(z, batch[1], context.outputs)
            return context.objective.criterion(outputs, batch) + self.lambda_ * far, seen

        gradient = context.objective.differentiate(loss)

        def direction(work, batches):
            d, seen = gradient(work["model"], work["prototypes"], batches[0])
            return {"model": d}, work | {"tally": tally.add(work["tally"], seen)}

        def end(received, work):
            return {"model": work["model"], "prototypes": tally.mean(work["tally"])}, {}

        def merge(server, mean):
            found = updated(server["prototypes"], mean.slots["prototypes"])
            return {"model": mean.slots["model"], "prototypes": found}

        return Method(
            Server(
                {"model": network.initial, "prototypes": none},
                sends("model", "prototypes"),
                FromMean(merge, "rows", steps=True),
            ),
            Client(
                begin=lambda received, kept, batch: received | {"tally": tally.start},
                phases=(Phase(direction, self.eta, one_gradient_per_batch=True),),
                end=end,
                sends={"model", "prototypes"},
            ),
            serve=lambda received, kept, trained: Served((received["model"],)),
            kinds=kinds_of(models="model", statistics="prototypes tally"),
            claims=claims_of("prototypes"),
        )
