"""A method of your own: local steps that are held near the common model, as in FedProx."""

import engram
from engram.types import Batch, LossFn, Params


@engram.method
class Anchored(engram.NetworkMethod):
    """Local steps that are held near the common model by a proximal term."""

    name = "anchored"
    source = "the proximal term of Li et al., MLSys 2020"

    eta: float = engram.Field(0.1, gt=0, description="step size of a client's local steps")
    mu: float = engram.Field(0.5, ge=0, description="weight of the proximal term")

    def rule(self, loss: LossFn) -> engram.LocalRule:
        """Builds ``w <- w - eta (grad L(w) + mu (w - u))``; u is the common model."""
        gradient, eta, mu = engram.gradient(loss), self.eta, self.mu

        def init(w: Params, batch: Batch) -> Params:
            return w

        def step(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
            g = gradient(w, batches[0])
            return {name: w[name] - eta * (g[name] + mu * (w[name] - u[name])) for name in w}, u

        return engram.LocalRule(
            init, step, batches_per_step=1, needs_initial_batch=False, state_is_model=False
        )
