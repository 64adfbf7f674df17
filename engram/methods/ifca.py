"""IFCA. Ghosh, Chung, Yin, Ramchandran. NeurIPS 2020."""

from typing import Annotated

import torch
from annotated_types import Ge

from engram.core.method import Client, Context, FromEach, Method, Phase, Served, Server
from engram.core.settings import Eta, Search, Several, method
from engram.core.slots import kinds_of, mean_of, sends
from engram.core.tree import add_scaled, interpolate


@method("ifca", source="Ghosh et al., NeurIPS 2020, Alg. 1, model averaging")
class Ifca:
    """A model for each cluster of clients, which choose one by their losses."""

    eta: Eta = 0.1
    clusters: Annotated[Several, Search(1, 6), "models that clients choose from; 1: fedavg"] = 3
    initial_batch_size: Annotated[int, Ge(1), "rows by which a client chooses"] = 50

    def build(self, context: Context) -> Method:
        """Builds Alg. 1 with model averaging, over the clients S_j that chose model j.

            j = argmin_k L0(w_k),    w <- w - eta grad L(w), from w = w_j
            w_j <- w_j + mean_{S_j} (w - w_j)

        L0 is the loss of the first batch; of equal ones the first counts. Models start from draws
        of their own. A client sends one change and its choice, as shares of which one is 1: so it
        is a choice of one model whatever clips or noises it. The server sees every update. A client
        is served by the model with the least loss on its training rows.
        """
        objective, network = context.objective, context.network
        names = [f"model{k}" for k in range(self.clusters)]

        def begin(received, kept, batch):
            losses = torch.stack([objective.loss(received[k], batch) for k in names])
            least = losses.nan_to_num(torch.inf, posinf=torch.inf).argmin(0)
            chosen = received[names[0]]
            for i, k in enumerate(names[1:], 1):
                chosen = interpolate(chosen, received[k], (least == i).to(losses))
            choice = (least[..., None] == torch.arange(len(names), device=least.device)).to(losses)
            return {"model": chosen, "start": chosen, "choice": choice}

        def direction(work, batches):
            return {"model": objective.gradient(work["model"], batches[0])}, work

        def end(received, work):
            change = add_scaled(work["model"], -1.0, work["start"])
            return {"change": change, "choice": work["choice"]}, {}

        def merge(server, updates):
            merged = dict(server)
            for i, k in enumerate(names):
                mine = [
                    u._replace(slots={"change": u.slots["change"]})
                    for u in updates
                    if u.slots["choice"].argmax() == i
                ]
                if mine:
                    merged[k] = add_scaled(server[k], 1.0, mean_of(mine, "weight").slots["change"])
            return merged

        phase = Phase(direction, self.eta, affine=True, one_gradient_per_batch=True)
        starts = network.draws(self.clusters)
        return Method(
            Server(dict(zip(names, starts, strict=True)), sends(*names), FromEach(merge)),
            Client(
                begin,
                phases=(phase,),
                end=end,
                sends={"change", "choice"},
                initial_rows=self.initial_batch_size,
            ),
            serve=lambda received, kept, trained: Served(tuple(received[k] for k in names)),
            kinds=kinds_of(
                models=f"model start {' '.join(names)}", differences="change", statistics="choice"
            ),
            claims={"choice": "shares"},
        )
