"""pFedMe. T Dinh, Tran, Nguyen. NeurIPS 2020."""

from collections.abc import Iterator
from typing import Annotated

from annotated_types import Gt, Interval, Le

from engram.core.checks import Fault, anywhere, must
from engram.core.method import Client, Context, FromMean, Method, Phase, Server
from engram.core.settings import OnServer, Search, Step, method
from engram.core.slots import kinds_of, sends, serve_own
from engram.core.tree import add_scaled, interpolate, multiplied


@method("pfedme", source="T Dinh et al., NeurIPS 2020, Alg. 1", compared=True)
class PFedMe:
    """Personal models held near the common one by a proximal term."""

    alpha: Annotated[float, Gt(0), Search(1e-3, 0.1, log=True), "inner step size"] = 0.01
    eta: Annotated[Step, "step size of the common model"] = 0.1
    lambda_: Annotated[float, Gt(0), Search(0.5, 50, log=True), "weight of the proximal term"] = (
        15.0
    )
    inner_steps: Annotated[
        int, Interval(ge=1, le=1000), Search(1, 10), "steps towards the proximal point"
    ] = 5
    server_mix: Annotated[
        float, Gt(0), Le(10**6), OnServer, "weight of the round's mean (beta)"
    ] = 1.0

    def faults(self) -> Iterator[Fault]:
        """Yields a fault where the inner steps would diverge."""
        if anywhere(self.alpha * self.lambda_ >= 2):
            product = must("alpha * lambda", self.alpha * self.lambda_, "below 2")
            yield Fault(("alpha", "lambda"), product)

    def build(self, context: Context) -> Method:
        """Builds Alg. 1; theta approximates the proximal point of w on one batch.

            theta <- theta - alpha (grad L(theta) + lambda (theta - w)),    from theta = w
            w <- w - eta lambda (w - theta)
            server: w <- (1 - beta) w + beta mean w_i

        The gradient is taken anew at each theta: taken once, at w, it would be FedAvg with another
        step size. A client keeps its last theta, which serves it; no step reads it.
        """
        gradient = context.objective.gradient

        def direction(work, batches):
            w = theta = work["model"]
            for _ in range(self.inner_steps):
                # theta - alpha lambda (theta - w) is a point on the line through theta and w.
                near = interpolate(theta, w, self.alpha * self.lambda_)
                theta = add_scaled(near, -self.alpha, gradient(theta, batches[0]))
            pulled = multiplied(add_scaled(w, -1.0, theta), self.lambda_)
            return {"model": pulled}, work | {"own": theta}

        def merge(server, mean):
            return {"model": interpolate(server["model"], mean.slots["model"], self.server_mix)}

        initial = context.network.initial
        return Method(
            Server({"model": initial}, sends("model"), FromMean(merge, steps=self.server_mix != 1)),
            Client(
                # The last theta is not read, so no time goes into it.
                begin=lambda received, kept, batch: received | {"own": received["model"]},
                phases=(Phase(direction, self.eta, affine=True),),
                end=lambda received, work: ({"model": work["model"]}, {"own": work["own"]}),
                sends={"model"},
                start={"own": initial},
            ),
            serve_own,
            kinds=kinds_of(models="model own"),
        )
