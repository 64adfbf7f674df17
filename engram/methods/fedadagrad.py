"""FedAdagrad. Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. ICLR 2021."""

from typing import Annotated

import torch
from annotated_types import Ge, Interval, Lt
from torch import Tensor

from engram.core.method import Context, FromMean, Method
from engram.core.settings import OnServer, Search, Step, method
from engram.core.slots import kinds_of, pick, zeros
from engram.core.tree import add_scaled, interpolate
from engram.methods.fedavg import FedAvg

Weight = Annotated[
    float, Ge(0), Lt(1), Search(0, 0.99), OnServer, "weight of the former mean of the changes"
]


@method("fedadagrad", source="Reddi et al., ICLR 2021, Alg. 2")
class FedAdagrad(FedAvg):
    """FedAvg with Adagrad on the server."""

    server_eta: Annotated[Step, OnServer, "step size of the server"] = 0.01
    beta1: Weight = 0.0
    tau: Annotated[
        float,
        Interval(gt=0, le=1e9),
        Search(1e-4, 0.1, log=True),
        OnServer,
        "degree of adaptivity; the smaller, the more",
    ] = 0.001

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Returns the next v: ``v + D^2``."""
        return v + square

    def build(self, context: Context) -> Method:
        """Builds Alg. 2 with the mean change D of the clients' models in place of a gradient.

            m <- beta1 m + (1 - beta1) D,    v <- second(v, D^2)
            w <- w + server_eta m / (sqrt(v) + tau)

        m starts at 0 and v at tau^2; as in the paper, neither is corrected for its start. D counts
        rows, as FedAvg does. The larger tau, the more this is FedAvg with momentum, at the step
        size ``server_eta / tau``.
        """
        base = super().build(context)
        none = zeros(pick(context.network.initial, context.network.shared))

        def merge(server, mean):
            change = add_scaled(mean.slots["model"], -1.0, server["model"])
            first = interpolate(change, server["first"], self.beta1)
            second = {n: self.second(v, change[n].square()) for n, v in server["second"].items()}
            step = {n: m / (second[n].sqrt() + self.tau) for n, m in first.items()}
            model = add_scaled(server["model"], self.server_eta, step)
            return {"model": model, "first": first, "second": second}

        moments = {
            "first": none,
            "second": {n: torch.full_like(leaf, self.tau**2) for n, leaf in none.items()},
        }
        return base._replace(
            server=base.server._replace(
                start=base.server.start | moments, merge=FromMean(merge, "rows", steps=True)
            ),
            kinds=kinds_of(models="model", differences="first", statistics="second"),
        )
