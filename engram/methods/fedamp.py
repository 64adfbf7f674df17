"""FedAMP. Huang, Chu, Zhou, Wang, Liu, Pei, Zhang. AAAI 2021."""

from typing import Annotated

import torch
from annotated_types import Ge, Gt

from engram.core.method import Client, Context, FromEach, Method, Phase, Server
from engram.core.settings import Eta, OnServer, Proximal, Search, method
from engram.core.slots import kinds_of, mean_of, or_common, pick, scatter, serve_own
from engram.core.tree import add_scaled


@method("fedamp", source="Huang et al., AAAI 2021, Alg. 1")
class FedAmp:
    """Personal models, each held near a mixture of those that are like it."""

    eta: Eta = 0.1
    lambda_: Proximal = 1.0
    attraction: Annotated[
        float,
        Ge(0),
        Search(1e-3, 1, log=True),
        OnServer,
        "weight in a client's mixture of another model that is the same as its own",
    ] = 0.1
    sigma: Annotated[
        float,
        Gt(0),
        Search(0.1, 1000, log=True),
        OnServer,
        "squared distance of models at which that weight has fallen to 1/e of it",
    ] = 1.0

    def build(self, context: Context) -> Method:
        """Builds Alg. 1; w_i are the clients' models, and u_i the server's mixtures.

            u_i = (1 - sum_{j != i} a_ij) w_i + sum_{j != i} a_ij w_j
            a_ij = attraction exp(-|w_i - w_j|^2 / sigma)
            w_i <- w_i - eta (grad L(w_i) + lambda (w_i - u_i))

        In the paper a_ij is ``alpha A'(|w_i - w_j|^2)`` with ``A(x) = 1 - exp(-x / sigma)``, so its
        step size alpha is ``sigma * attraction``, and its lambda is ``alpha`` times the one here:
        these mean the same for all sigma. Weights whose sum is above 1 are divided by it, which
        the paper has alpha small enough for. w_i moves by a round's steps from where it was, not to
        the minimum. j runs over all clients that have taken part, by the models that they sent
        last; distances are of shared parameters. One that never took part is held near the mean of
        the last round's models.
        """
        network, gradient = context.network, context.objective.gradient
        shared = pick(network.initial, network.shared)
        measured = sorted(network.shared & network.learned)

        def flat(models):
            none = torch.zeros(context.clients, 0)  # where nothing is shared
            return torch.cat([none, *(models[n].flatten(1) for n in measured)], 1)

        def mixtures(server, clients):
            models, numbers = server["models"], torch.tensor(clients, dtype=torch.int64)
            every = flat(models)
            away = torch.stack([(every - w).square().sum(1) for w in every[numbers]])
            others = (numbers[:, None] != torch.arange(context.clients)) * server["known"]
            weights = self.attraction * torch.exp(-away / self.sigma) * others
            weights = weights / weights.sum(1, keepdim=True).clamp(min=1.0)
            weights = weights.scatter(1, numbers[:, None], 1 - weights.sum(1, keepdim=True))
            return {n: torch.tensordot(weights, leaf, dims=1) for n, leaf in models.items()}

        def send(server, clients):
            known = server["known"][list(clients)]
            mixed = mixtures(server, clients)
            return {}, {"model": or_common(mixed, server["model"], known, range(len(clients)))}

        def merge(server, updates):
            cohort = [u.client for u in updates]
            new = {n: torch.stack([u.slots["model"][n] for u in updates]) for n in server["models"]}
            return {
                "model": mean_of(updates, "weight").slots["model"],
                "models": scatter(server["models"], cohort, new),
                "known": server["known"].index_fill(0, torch.tensor(cohort), 1.0),
            }

        def begin(received, kept, batch):
            return {"own": kept["own"], "near": received["model"]}

        def direction(work, batches):
            away = add_scaled(work["own"], -1.0, work["near"])
            return {"own": add_scaled(gradient(work["own"], batches[0]), self.lambda_, away)}, work

        start = {
            "model": network.initial,
            "models": {n: x.repeat(context.clients, *[1] * x.ndim) for n, x in shared.items()},
            "known": torch.zeros(context.clients),
        }
        return Method(
            Server(start, send, FromEach(merge)),
            Client(
                begin,
                phases=(Phase(direction, self.eta, affine=True, one_gradient_per_batch=True),),
                end=lambda received, work: ({"model": work["own"]}, {"own": work["own"]}),
                sends={"model"},
                start={"own": network.initial},
            ),
            serve_own,
            kinds=kinds_of(models="model own near", statistics="models known"),
        )
