"""FedEM. Marfoq, Neglia, Bellet, Kameni, Vidal. NeurIPS 2021."""

from typing import Annotated

import torch

from engram.core.method import Client, Context, FromMean, Method, Phase, Served, Server
from engram.core.settings import Eta, Search, Several, method
from engram.core.slots import kinds_of, replace, sends
from engram.core.types import Weighted
from engram.scoring.mixtures import row_losses

_LEAST = 1e-20  # of a weight, whose logarithm is taken


@method("fedem", source="Marfoq et al., NeurIPS 2021, Alg. 1 and 2")
class FedEm:
    """Common components, which each client mixes by weights of its own."""

    eta: Eta = 0.1
    components: Annotated[Several, Search(1, 6), "models that clients mix; 1: fedavg"] = 3

    def build(self, context: Context) -> Method:
        """Builds Alg. 2: an expectation step over the round's batches, and maximization steps.

            q_i(m) = pi_m exp(-l(theta_m, i)) / sum_m' pi_m' exp(-l(theta_m', i))
            pi_m <- mean_i q_i(m)
            theta_m <- theta_m - eta grad mean_i q_i(m) l(theta_m, i)

        The responsibilities q of a row i are those of the components that were received and of the
        weights pi that the client kept; each step takes those of its batch. The paper has them, and
        their mean, of all rows of a client: so it is here where a round is an epoch or several, and
        otherwise the mean is over the rows of the round's batches. Components start from draws of
        their own, and weights at 1/M. A client is served by the mixture of what they predict.
        """
        objective, network = context.objective, context.network
        names = [f"model{m}" for m in range(self.components)]
        starts_of = [f"start{m}" for m in range(self.components)]

        def begin(received, kept, batch):
            starts = {s: received[n] for s, n in zip(starts_of, names, strict=True)}
            none = torch.zeros_like(kept["weights"])
            return received | starts | kept | {"sum": none, "rows": none[..., 0]}

        def direction(work, batches):
            (batch,) = batches
            losses = [row_losses(objective.loss, work[start], batch) for start in starts_of]
            pi = work["weights"].clamp(min=_LEAST)
            q = (pi.log()[:, None] - torch.stack(losses)).softmax(0)
            rows, moved = q.shape[1], {}
            for name, mine in zip(names, q, strict=True):
                moved[name] = objective.gradient(work[name], Weighted(batch, mine / rows))
            return moved, work | {"sum": work["sum"] + q.sum(1), "rows": work["rows"] + rows}

        def end(received, work):
            return {n: work[n] for n in names}, {"weights": work["sum"] / work["rows"]}

        def serve(received, kept, trained):
            models, pi = tuple(received[n] for n in names), kept["weights"].clamp(min=_LEAST)
            return Served(models, pi, tuned=not trained)

        uniform = torch.full((self.components,), 1 / self.components)
        starts = dict(zip(names, network.draws(self.components), strict=True))
        return Method(
            Server(starts, sends(*names), FromMean(replace, "rows")),
            Client(
                begin,
                phases=(Phase(direction, self.eta),),
                end=end,
                sends=set(names),
                start={"weights": uniform},
            ),
            serve,
            kinds=kinds_of(models=" ".join([*names, *starts_of]), statistics="weights sum rows"),
        )
