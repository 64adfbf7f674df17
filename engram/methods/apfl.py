"""APFL. Deng, Kamani, Mahdavi. 2020 (arXiv:2003.13461)."""

from typing import Annotated

import torch

from engram.core.method import Client, Context, FromMean, Method, Phase, Served, Server
from engram.core.settings import Eta, Mixed, method
from engram.core.slots import keep_all, kinds_of, replace, sends
from engram.core.tree import add_scaled, interpolate, multiplied


@method("apfl", source="Deng et al., 2020, Alg. 1")
class Apfl:
    """Mixtures of the common model and a client's own, trained as mixtures."""

    eta: Eta = 0.1
    alpha: Annotated[Mixed, "weight of a client's own model; 0: fedavg"] = 0.5
    adaptive: Annotated[bool, "whether each client learns its weight, from there"] = False

    def build(self, context: Context) -> Method:
        """Builds Alg. 1. All gradients are taken on one batch, at the models before the step.

            m = alpha v + (1 - alpha) w
            w <- w - eta grad L(w)
            v <- v - eta alpha grad L(m)
            alpha <- clip(alpha - eta <grad L(m), v - w>, 0, 1)           if adaptive

        alpha stands before the second gradient since it is the one by v. Neither an optimizer nor a
        schedule bears on alpha. A client is served by m.
        """
        gradient, initial = context.objective.gradient, context.network.initial

        def direction(work, batches):
            w, v, alpha = work["model"], work["own"], work["alpha"]
            at_mixture = gradient(interpolate(w, v, alpha), batches[0])
            if self.adaptive:
                away = add_scaled(v, -1.0, w)
                # In float64, where it does not depend on a sum's order, which torch leaves open.
                products = torch.cat([(x * away[n]).flatten() for n, x in at_mixture.items()])
                slope = products.sum(dtype=torch.float64).to(alpha)
                work = work | {"alpha": (alpha - self.eta * slope).clamp(0, 1)}
            return {"model": gradient(w, batches[0]), "own": multiplied(at_mixture, alpha)}, work

        def serve(received, kept, trained):
            if trained:
                return Served((interpolate(received["model"], kept["own"], kept["alpha"]),))
            return Served((received["model"],), tuned=True)

        def end(received, work):
            return {"model": work["model"]}, {slot: work[slot] for slot in ("own", "alpha")}

        return Method(
            Server({"model": initial}, sends("model"), FromMean(replace)),
            Client(
                begin=keep_all,
                phases=(Phase(direction, self.eta, affine=not self.adaptive),),
                end=end,
                sends={"model"},
                start={"own": initial, "alpha": self.alpha * torch.ones(())},
            ),
            serve,
            kinds=kinds_of(models="model own", statistics="alpha"),
        )
