"""pFedMe: personalization by Moreau envelopes.

T. Dinh, Tran, Nguyen. Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020.
"""

from engram.checks import require
from engram.derivatives import gradient
from engram.tree import add_scaled, interpolate, multiplied
from engram.types import Batch, LocalRule, LossFn, Params, Scale

__all__ = ["pfedme"]


def pfedme(
    loss: LossFn, *, alpha: Scale, eta: Scale, strength: Scale, inner_steps: int
) -> LocalRule:
    """Builds the client's part of pFedMe (Alg. 1 of that paper).

    A step draws one batch, approximates the proximal point
    ``theta = argmin L(theta) + strength/2 |theta - w|^2`` by ``inner_steps`` gradient steps ::

        theta <- theta - alpha (grad L(theta) + strength (theta - w)),   from theta = w

    and moves w along the gradient of the Moreau envelope::

        w <- w - eta strength (w - theta)

    The gradient is evaluated anew at each theta; evaluating it once at w would give FedAvg with
    another step size. Since the steps start from w, theta is a function of w and the batch alone,
    as in the paper's analysis, and need not be carried between rounds.

    Args:
        loss: Mean loss over one batch; differentiable in the parameters.
        alpha: Inner step size; > 0, and ``alpha * strength < 2``, or theta diverges.
        eta: Outer step size; > 0.
        strength: Weight lambda of the proximal term; > 0. Larger keeps theta nearer to w.
        inner_steps: Gradient steps towards the proximal point; >= 1.

    Returns:
        A rule whose state is theta, the client's personal model.

    Raises:
        ValueError: If a value is out of range.
    """
    require(alpha > 0, "alpha", alpha, "positive")
    require(eta > 0, "eta", eta, "positive")
    require(strength > 0, "lambda", strength, "positive")
    require(alpha * strength < 2, "alpha * lambda", alpha * strength, "below 2")
    require(inner_steps >= 1, "inner-steps", inner_steps, "at least 1")
    grad = gradient(loss)

    def init(w: Params, batch: Batch | None) -> Params:
        del batch
        return w

    def proximal(w: Params, batches: tuple[Batch, ...]) -> Params:
        (batch,) = batches
        theta = w
        for _ in range(inner_steps):
            # theta - alpha strength (theta - w) is a point on the line through theta and w.
            theta = add_scaled(interpolate(theta, w, alpha * strength), -alpha, grad(theta, batch))
        return theta

    def direction(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        del u
        theta = proximal(w, batches)
        return multiplied(add_scaled(w, -1.0, theta), strength), theta

    def step(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        del u
        theta = proximal(w, batches)
        return interpolate(w, theta, eta * strength), theta

    return LocalRule(
        init=init,
        step=step,
        state_is_model=True,
        reads_state=False,
        affine=True,
        direction=direction,
        eta=eta,
    )
