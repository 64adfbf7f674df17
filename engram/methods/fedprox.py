"""FedProx. Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. MLSys 2020."""

from typing import Annotated

from engram.core.method import Context, Method, Phase
from engram.core.settings import Penalty, method
from engram.core.slots import kinds_of
from engram.core.tree import add_scaled
from engram.methods.fedavg import FedAvg


@method("fedprox", source="Li et al., MLSys 2020, Alg. 2")
class FedProx(FedAvg):
    """FedAvg with a proximal term that holds local models near the common one."""

    mu: Annotated[Penalty, "weight of the proximal term; 0: fedavg"] = 0.01

    def build(self, context: Context) -> Method:
        """Builds Alg. 2, from the model w_t that a client receives, on the objective (2).

            w <- w - eta (grad L(w) + mu (w - w_t))

        These are the steps of an inexact solver; how inexact it is follows from their number.
        """
        gradient = context.objective.gradient

        def begin(received, kept, batch):
            return received | {"start": received["model"]}

        def direction(work, batches):
            w, away = work["model"], add_scaled(work["model"], -1.0, work["start"])
            return {"model": add_scaled(gradient(w, batches[0]), self.mu, away)}, work

        base = super().build(context)
        phase = Phase(direction, self.eta, affine=True, one_gradient_per_batch=True)
        return base._replace(
            client=base.client._replace(begin=begin, phases=(phase,)),
            kinds=kinds_of(models="model start"),
        )
