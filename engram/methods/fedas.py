"""FedAS. Yang, Huang, Ye. CVPR 2024."""

from typing import Annotated

from engram.core.class_statistics import class_statistics, distance_to_class_means, empty
from engram.core.method import Client, Context, FromEach, Method, Phase, Served, Server
from engram.core.settings import Eta, Share, Step, method
from engram.core.slots import Tally, kinds_of, mean_of, sends
from engram.core.tree import norm


@method(
    "fedas", source="Yang et al., CVPR 2024, Alg. 1", tasks=("classification",), personal="head"
)
class FedAs:
    """A common body that is aligned to each client's former one, and a mean by Fisher traces."""

    eta: Eta = 0.1
    align_eta: Annotated[Step, "step size of the steps that align the body"] = 0.1
    align_share: Annotated[
        Share, "share of a client's steps in a round, the first ones, that align the body"
    ] = 0.2

    def build(self, context: Context) -> Method:
        """Builds Alg. 1 for a client's body, its own head, and prototypes c_y that it keeps.

            body <- body - align_eta grad mean over rows of |z - c_y|^2 / width
            w <- w - eta grad L(w),    t_i = mean over these steps of |grad L(w)|^2
            w <- sum_S t_i w_i / sum_S t_i                                  at the server

        z is a row's representation, c_y the mean z of class y by the client's former model, and t_i
        an estimate of the Fisher information's trace. The paper takes the prototypes in a pass over
        all rows before the round, and the trace in one after it, which would cost as much as two
        epochs: here both are of the rows that steps draw, each by the network before its step, and
        prototypes are of the client's last round. Before it has trained, nothing is aligned. The
        authors' code sums distances over classes, and t_i over batches: with it, rows count, too.

        Raises:
            ValueError: If the network has no representation, or nothing below its head.
        """
        network = context.network
        network.require_body()
        network.require_representation()
        body = network.learned - network.head
        none = empty(network, context.outputs)
        tally = Tally(none | {"trace": network.zeros()})

        def distance(w, known, batch):
            return distance_to_class_means(
                network.represent(w, batch, None)[1], batch[1], known
            ), ()

        def loss(w, batch):
            outputs, z = network.represent(w, batch, None)
            seen = class_statistics(z, batch[1], context.outputs)
            return context.objective.criterion(outputs, batch), seen

        to_former = context.objective.differentiate(distance, body)
        gradient = context.objective.differentiate(loss)

        def align(work, batches):
            return {"model": to_former(work["model"], work["prototypes"], batches[0])[0]}, work

        def train(work, batches):
            d, seen = gradient(work["model"], batches[0])
            tallied = tally.add(work["tally"], seen | {"trace": norm(d).square()})
            return {"model": d}, work | {"tally": tallied}

        def end(received, work):
            mean = tally.mean(work["tally"])
            prototypes = {name: mean[name] for name in none}
            return {"model": work["model"], "trace": mean["trace"]}, {"prototypes": prototypes}

        def merge(server, updates):
            traced = [
                u._replace(
                    slots={"model": u.slots["model"]}, rows=max(float(u.slots["trace"]), _LEAST)
                )
                for u in updates
            ]
            return mean_of(traced, "rows").slots

        return Method(
            Server({"model": network.initial}, sends("model"), FromEach(merge)),
            Client(
                begin=lambda received, kept, batch: received | kept | {"tally": tally.start},
                phases=(
                    Phase(align, self.align_eta, fraction=self.align_share),
                    Phase(train, self.eta, one_gradient_per_batch=True),
                ),
                end=end,
                sends={"model", "trace"},
                start={"prototypes": none},
            ),
            serve=lambda received, kept, trained: Served((received["model"],), tuned=not trained),
            kinds=kinds_of(models="model", statistics="prototypes tally trace"),
            claims={"trace": "amount"},
        )


_LEAST = 1e-30  # a trace, so that clients whose gradients are all 0 have a mean
