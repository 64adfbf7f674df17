"""FedRoD. Chen, Chao. ICLR 2022."""

from typing import Annotated

import torch
from annotated_types import Ge

from engram.core.class_statistics import indicators
from engram.core.method import Client, Context, FromMean, Method, Phase, Served, Server
from engram.core.settings import Eta, Search, method
from engram.core.slots import keep_all, kinds_of, pick, replace, sends, zeros
from engram.core.tree import add_scaled


@method("fedrod", source="Chen & Chao, ICLR 2022, Alg. 1", tasks=("classification",))
class FedRod:
    """A common model by a balanced loss, to whose last layer each client adds one of its own."""

    eta: Eta = 0.1
    gamma: Annotated[
        float, Ge(0), Search(0, 2), "exponent of class frequencies in the balanced loss; 0: fedavg"
    ] = 1.0

    def build(self, context: Context) -> Method:
        """Builds Alg. 1 with linear heads: w is the common model, h its head, v the client's own.

            w <- w - eta grad mean over rows of -log(n_y^gamma e^(o_y) / sum_c n_c^gamma e^(o_c))
            v <- v - eta grad_v L(w with the head h + v)

        o are w's outputs and n_c the client's rows of class c: the balanced softmax loss. The sum
        of two linear heads' outputs is the output of h + v, so that is the head by which a client
        is served. v moves at w before the step, and begins at 0, where a client is served by w.
        n counts the rows that the client's steps have drawn until then, in all rounds.

        Raises:
            ValueError: If the network has no representation.
        """
        network, gradient = context.network, context.objective.gradient
        network.require_representation()
        head = network.head & network.learned

        def balanced(w, counts, batch):
            outputs, _ = network.represent(w, batch, None)
            # A class without rows has weight 0, but no infinite loss where a loss looks at it.
            logs = counts.clamp(min=torch.finfo(counts.dtype).tiny).log()
            return context.objective.criterion(outputs + self.gamma * logs, batch), ()

        by_common = context.objective.differentiate(balanced)

        def direction(work, batches):
            (batch,), w = batches, work["model"]
            counts = work["counts"] + indicators(batch[1], context.outputs).sum(0)
            d, _ = by_common(w, counts, batch)
            own = gradient(add_scaled(w, 1.0, work["own"]), batch, head)
            return {"model": d, "own": own}, work | {"counts": counts}

        def end(received, work):
            return {"model": work["model"]}, {slot: work[slot] for slot in ("own", "counts")}

        def serve(received, kept, trained):
            model = add_scaled(received["model"], 1.0, kept["own"])
            return Served((model,), tuned=not trained)

        none = zeros(pick(network.initial, head))
        return Method(
            Server({"model": network.initial}, sends("model"), FromMean(replace, "rows")),
            Client(
                begin=keep_all,
                phases=(Phase(direction, self.eta),),
                end=end,
                sends={"model"},
                start={"own": none, "counts": torch.zeros(context.outputs)},
            ),
            serve,
            kinds=kinds_of(models="model", differences="own", statistics="counts"),
        )
