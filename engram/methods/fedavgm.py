"""FedAvgM. Hsu, Qi, Brown. Measuring the Effects of Non-Identical Data Distribution. 2019."""

from typing import Annotated

from annotated_types import Ge, Lt

from engram.core.method import Context, FromMean, Method
from engram.core.settings import OnServer, Search, method
from engram.core.slots import kinds_of, pick, zeros
from engram.core.tree import add_scaled
from engram.methods.fedavg import FedAvg


@method("fedavgm", source="Hsu, Qi & Brown, 2019 (arXiv:1909.06335)")
class FedAvgM(FedAvg):
    """FedAvg with momentum on the server."""

    beta: Annotated[
        float, Ge(0), Lt(1), Search(0, 0.99), OnServer, "momentum of the server; 0: fedavg"
    ] = 0.9

    def build(self, context: Context) -> Method:
        """Builds FedAvg with the mean change D of the clients' models, by rows, in a velocity v.

            v <- beta v + D,    w <- w + v

        v starts at 0. Of changes that stay the same, w moves by ``D / (1 - beta)`` a round: the
        larger beta, the smaller eta should be.
        """
        base = super().build(context)

        def merge(server, mean):
            change = add_scaled(mean.slots["model"], -1.0, server["model"])
            velocity = add_scaled(change, self.beta, server["velocity"])
            return {"model": add_scaled(server["model"], 1.0, velocity), "velocity": velocity}

        none = zeros(pick(context.network.initial, context.network.shared))
        return base._replace(
            server=base.server._replace(
                start=base.server.start | {"velocity": none},
                merge=FromMean(merge, "rows", steps=True),
            ),
            kinds=kinds_of(models="model", differences="velocity"),
        )
