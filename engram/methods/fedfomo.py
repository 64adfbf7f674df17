"""FedFomo. Zhang, Sapra, Fidler, Yeung, Alvarez. ICLR 2021."""

from typing import Annotated

import torch
from annotated_types import Ge

from engram.core.method import Client, Context, FromEach, Method, Phase, Served, Server
from engram.core.settings import Eta, Search, Several, method
from engram.core.slots import kinds_of, mean_of, or_common, pick, scatter
from engram.core.tree import add_scaled, multiplied, norm


@method("fedfomo", source="Zhang et al., ICLR 2021, Alg. 1")
class FedFomo:
    """Clients mix the models of others that lose less on their rows, and train the mixture."""

    eta: Eta = 0.1
    models: Annotated[Several, Search(1, 10), "models of others that a client is sent"] = 5
    initial_batch_size: Annotated[int, Ge(1), "rows by which a client weighs models"] = 50

    def build(self, context: Context) -> Method:
        """Builds Alg. 1 for client i, its model w and those of some others, w_j.

            g_j = max(0, (L0(w) - L0(w_j)) / |w_j - w|)
            w <- w + sum_j g_j (w_j - w) / sum_j g_j,    then w <- w - eta grad L(w)
            p_ij <- p_ij + (L0(w) - L0(w_j)) / |w_j - w|            at the server

        L0 is the loss of the first batch; the paper sets rows apart for it. Distances are of shared
        parameters; 1e-5 is added to them, as models that are the same differ by rounding. Where all
        g_j are 0, w stays.

        The server keeps each client's last model, and sends i those of the greatest p_ij, among
        clients that have taken part. The paper also sends random ones, with a probability that
        falls; here p begins with draws next to 0, so that chance breaks ties, and models that have
        raised a client's loss make room for such as it has not seen. One that never took part
        begins with the mean of the last round's models.
        """
        network, objective, everyone = context.network, context.objective, context.clients
        count = self.models
        shared = pick(network.initial, network.shared)

        def chosen(server, clients):
            at = torch.tensor(clients, dtype=torch.int64)[:, None]
            others = (at != torch.arange(everyone)) & (server["known"] > 0)
            ranks = torch.where(others, server["affinity"][list(clients)], -torch.inf)
            best = ranks.topk(min(count, everyone), dim=1)
            found = torch.where(best.values > -torch.inf, best.indices, at)
            own = at.expand(-1, count - found.shape[1])  # too few: its own
            return torch.cat([found, own], 1)

        def send(server, clients):
            at = chosen(server, clients)
            own = or_common(server["models"], server["model"], server["known"], clients)
            models = scatter(server["models"], clients, own)
            return {}, {"model": own, "others": {n: leaf[at] for n, leaf in models.items()}}

        def begin(received, kept, batch):
            w = received["model"]
            mine, gains, mixed = objective.loss(w, batch), [], w
            aways = [
                {n: leaf[k] - w[n] for n, leaf in received["others"].items()} for k in range(count)
            ]
            for away in aways:
                learned = pick(away, network.learned)
                gain = mine - objective.loss(add_scaled(w, 1.0, away), batch)
                gains.append((gain / (norm(learned) + _NEAR)).nan_to_num(0.0, 0.0, 0.0))
            gain = torch.stack(gains)
            weights = gain.clamp(min=0)
            weights = weights / torch.where(weights.sum() > 0, weights.sum(), 1.0)
            for k, away in enumerate(aways):
                mixed = mixed | add_scaled(
                    pick(mixed, away.keys()), 1.0, multiplied(away, weights[k])
                )
            return {"model": mixed, "gains": gain}

        def direction(work, batches):
            return {"model": objective.gradient(work["model"], batches[0])}, work

        def merge(server, updates):
            cohort = [u.client for u in updates]
            at = torch.tensor(cohort)
            new = {n: torch.stack([u.slots["model"][n] for u in updates]) for n in server["models"]}
            gains = torch.stack([u.slots["gains"] for u in updates]).to(server["affinity"])
            rows = server["affinity"][at].scatter_add(1, chosen(server, cohort), gains)
            plain = [u._replace(slots={"model": u.slots["model"]}) for u in updates]
            return {
                **mean_of(plain, "weight").slots,
                "models": scatter(server["models"], cohort, new),
                "affinity": server["affinity"].index_copy(0, at, rows),
                "known": server["known"].index_fill(0, at, 1.0),
            }

        start = {
            "model": network.initial,
            "models": {n: x.repeat(everyone, *[1] * x.ndim) for n, x in shared.items()},
            "affinity": 1e-6 * torch.rand(everyone, everyone, generator=context.generator()),
            "known": torch.zeros(everyone),
        }
        return Method(
            Server(start, send, FromEach(merge)),
            Client(
                begin,
                phases=(Phase(direction, self.eta),),
                end=lambda received, work: ({s: work[s] for s in ("model", "gains")}, {}),
                sends={"model", "gains"},
                initial_rows=self.initial_batch_size,
            ),
            serve=lambda received, kept, trained: Served((received["model"],), tuned=not trained),
            kinds=kinds_of(models="model", statistics="models others affinity known gains"),
        )


_NEAR = 1e-5  # added to distances
