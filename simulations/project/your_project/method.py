"""A method of your own: local steps that are held near the common model, as in FedProx."""

from typing import Annotated, Any

import engram
from annotated_types import Ge
from engram.core import (
    Client,
    Context,
    Eta,
    FromMean,
    Method,
    Phase,
    Served,
    Server,
    Slots,
    add_scaled,
    kinds_of,
    replace,
    sends,
)


@engram.method("anchored", source="the proximal term of Li et al., MLSys 2020")
class Anchored:
    """Local steps that are held near the common model by a proximal term."""

    eta: Eta = 0.1
    mu: Annotated[float, Ge(0), "weight of the proximal term"] = 0.5

    def build(self, context: Context) -> Method:
        """Builds ``w <- w - eta (grad L(w) + mu (w - w0))``; w0 is the common model."""

        def begin(received: Slots, kept: Slots, batch: Any) -> Slots:
            return {"model": received["model"], "start": received["model"]}

        def direction(work: Slots, batches: tuple[Any, ...]) -> tuple[Slots, Slots]:
            away = add_scaled(work["model"], -1.0, work["start"])
            gradient = context.objective.gradient(work["model"], batches[0])
            return {"model": add_scaled(gradient, self.mu, away)}, work

        def end(received: Slots, work: Slots) -> tuple[Slots, Slots]:
            return {"model": work["model"]}, {}  # what is sent, and what is kept

        def serve(received: Slots, kept: Slots, trained: bool) -> Served:
            return Served((received["model"],))

        return Method(
            Server({"model": context.network.initial}, sends("model"), FromMean(replace)),
            Client(begin, (Phase(direction, self.eta, affine=True),), end, sends={"model"}),
            serve,
            kinds_of(models="model start"),
        )
