"""FedALA. Zhang, Hua, Wang, Song, Xue, Ma, Guan. AAAI 2023."""

from typing import Annotated

import torch
from annotated_types import Ge, Lt

from engram.core.method import Client, Context, FromMean, Method, Phase, Served, Server
from engram.core.settings import Eta, Search, method
from engram.core.slots import kinds_of, replace, sends, zeros
from engram.core.tree import add_scaled, multiplied


@method("fedala", source="Zhang et al., AAAI 2023, Alg. 1")
class FedAla:
    """FedAvg with starts from learned mixtures of the common model and a client's last."""

    eta: Eta = 0.1
    weight_eta: Annotated[
        float, Ge(0), Search(0.1, 10, log=True), "step size of the weights of a client's last model"
    ] = 1.0
    weight_share: Annotated[
        float,
        Ge(0),
        Lt(1),
        Search(0, 0.9),
        "share of a client's steps in a round, the first ones, for these weights",
    ] = 0.4
    layers: Annotated[int, Ge(1), "last layers that are mixed; others are as received"] = 1

    def build(self, context: Context) -> Method:
        """Builds Alg. 1, from w_t, the client's last model v and the weights a that it keeps.

            m = (1 - a) * w_t + a * v                                     elementwise
            a <- clip(a - eta_a grad L(m) * (v - w_t), 0, 1)              the first steps
            w <- w - eta grad L(w)                                        the others, from w = m

        The weights a are of the last layers alone, and start at 0, where m is w_t. The paper trains
        them until they converge when they are used for the first time, and once through a part of
        the rows in later rounds; here it is the same share of the steps in each round, since
        nothing in a method depends on values. A client is served by m of the newest w_t and what it
        keeps, which Alg. 1 returns: the model from which it would train next.
        """
        network, gradient = context.network, context.objective.gradient
        trained_layers = [layer & network.learned for layer in network.layers]
        last = frozenset().union(*[layer for layer in trained_layers if layer][-self.layers :])

        def mixture(w, v, a):
            return w | {n: torch.lerp(w[n], v[n], x) for n, x in a.items()}

        def begin(received, kept, batch):
            w = received["model"]
            return kept | {"start": w, "model": mixture(w, kept["own"], kept["weights"])}

        def weigh(work, batches):
            w, v, a = work["start"], work["own"], work["weights"]
            g = gradient(mixture(w, v, a), batches[0], last)
            by_weight = {n: g[n] * (v[n] - w[n]) for n in a}
            moved = add_scaled(a, -1.0, multiplied(by_weight, self.weight_eta))
            a = {n: x.clamp(0, 1) for n, x in moved.items()}
            return {"model": {}}, work | {"weights": a, "model": mixture(w, v, a)}

        def train(work, batches):
            return {"model": gradient(work["model"], batches[0])}, work

        def end(received, work):
            kept = {"own": work["model"], "weights": work["weights"]}
            return {"model": work["model"]}, kept

        def serve(received, kept, trained):
            if trained:
                return Served((mixture(received["model"], kept["own"], kept["weights"]),))
            return Served((received["model"],), tuned=True)

        initial = network.initial
        phases = (Phase(weigh, self.eta, fraction=self.weight_share), Phase(train, self.eta))
        return Method(
            Server({"model": initial}, sends("model"), FromMean(replace, "rows")),
            Client(
                begin,
                phases=phases if self.weight_share else phases[1:],
                end=end,
                sends={"model"},
                start={"own": initial, "weights": zeros({n: initial[n] for n in sorted(last)})},
            ),
            serve,
            kinds=kinds_of(models="model own start", statistics="weights"),
        )
