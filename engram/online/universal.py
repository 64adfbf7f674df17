"""The universal ensemble: one learner for losses of unknown curvature.

Yan, Zhao, Zhou. Universal Online Learning with Gradient Variations: A Multi-layer Online Ensemble
Approach. NeurIPS 2023. Equations, lemmas and Algorithm 1 in this folder are that paper's.

Base learners guess the curvature, K copies of MsMwC with different step sizes weight them, and one
more copy weights these. Regret grows as log V_T for strongly convex losses, as d log V_T for
exp-concave ones, and as sqrt(V_T log V_T) for convex ones, where V_T is the total variation of
gradients between rounds; V_T = 0 for a fixed loss (Theorems 1 and 2).
"""

from functools import partial
from math import sqrt
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from engram.core.arrays import Array
from engram.core.checks import require
from engram.online.domains import Domain
from engram.online.learner import (
    Descent,
    Learner,
    Newton,
    checked,
    descent_pool,
    newton_pool,
    positive,
    started,
)
from engram.online.weights import curvatures, surrogate_gradients, weigh

Feedback = Literal["one-gradient", "multi-gradient"]
Kind = Literal["practical", "theory"]

_DIAMETER = 2.0  # D, where G is 1: in these units a strong convexity is at most 2 G / D = 1


class Constants(NamedTuple):
    """Constants of Algorithm 1, in units in which D = 2 and G = 1.

    Attributes:
        c_0: C_0; the top layer's largest step is 1 / (2 C_0).
        lambda_1: Weight of the top layer's correction.
        lambda_2: Weight of the middle layers' correction.
        bias: Factor of eta (l - m)^2, which is added to losses in (3.2).
        gamma_strong: gamma of Lemma 12.
        gamma_exp: gamma of Lemma 11.
        gamma_convex: gamma of Lemma 10.
    """

    c_0: float
    lambda_1: float
    lambda_2: float
    bias: float
    gamma_strong: float
    gamma_exp: float
    gamma_convex: float


def practical(smoothness: float) -> Constants:
    """Returns constants for practice; with those of the proof decisions hardly move.

    Without corrections and with gamma = L decisions are unstable; with lambda_1 = 4 logistic losses
    are not learned. With these large steps the proof's bias of 16 would give no weight to base
    learners far from the others, however good; 1/2 is the second-order term of the exponential.
    """
    gamma = smoothness + 4
    return Constants(1.0, 1.0, 2.0, 0.5, gamma, gamma, gamma)


def theoretical(smoothness: float) -> Constants:
    """Returns the smallest constants that the proof of Theorem 2 allows (C.2)."""
    d_2, l_2, bound = _DIAMETER**2, smoothness**2, 1.0
    g_2 = bound**2
    strong = (bound + _DIAMETER) ** 2  # G_sc squared
    c_2 = 4 * l_2 + 32 * d_2 * g_2 * l_2 + 8 * g_2**2
    c_3 = (4 + 4 * l_2) * strong
    c_4 = 2 * d_2 * l_2 + 2 * g_2 + 10 * _DIAMETER * l_2
    # 4 C_2 / (8 G^2 + lambda_2) is a third limit, and falls with lambda_2 >= 2 lambda_1.
    lambda_1 = max(32 * c_3, 2 * c_4)
    lambda_1 = max(lambda_1, 4 * c_2 / (8 * g_2 + 2 * lambda_1))
    lambda_2 = 2 * lambda_1
    limits = 128.0, 8 * _DIAMETER, 8 * lambda_1 * d_2, 64 * d_2 * c_3, 4 * d_2 * c_4
    c_0 = max(*limits, 8 * c_2 * d_2 / (8 * g_2 + lambda_2))
    # With the text's 8 G^2 + lambda_2 for exp-concave losses the last coefficient of the proof,
    # lambda_2 + 16 G^4 / gamma - gamma / 4, would be positive.
    return Constants(
        c_0,
        lambda_1,
        lambda_2,
        bias=16.0,
        gamma_strong=8 * lambda_2 + 512 * strong,
        gamma_exp=4 * lambda_2 + 8 * g_2,
        gamma_convex=4 * lambda_2 + 8 * g_2,
    )


class Universal(NamedTuple):
    """State of the ensemble before a round, in units in which the ball has radius 1 and G is 1."""

    # State of the base learners for strongly convex losses, and of the one for convex losses.
    descents: Descent
    # State of the base learners for exp-concave losses; empty if there are none.
    newtons: Newton | tuple[()]
    slopes: Array  # linear losses <g, x_i - x> of the base learners in the last round, shape (N,)
    moves: Array  # |x_i - x_i before|^2 of each base learner, shape (N,)
    mid_moves: Array  # the same of each middle layer's decision, shape (K,)
    mid_logs: Array  # log p-hat, up to a constant in each row, shape (K, N)
    top_logs: Array  # log q-hat, shape (K,)
    mid_weights: Array  # p, of this round, shape (K, N)
    mid_decisions: Array  # x_k, shape (K, d)
    top_weights: Array  # q, shape (K,)
    decision: Array  # x, shape (d,)


def universal_ensemble(
    domain: Domain,
    *,
    gradient_bound: float,
    horizon: int,
    smoothness: float | None = None,
    feedback: Feedback = "one-gradient",
    constants: Kind = "practical",
    exp_concave: bool = True,
) -> Learner[Universal]:
    """Builds Algorithm 1.

    It works in units of the domain's radius R = D / 2 and of G, so that the guesses of curvature,
    1/T to 1, cover all possible ones, and a change of units does not change the decisions.

    Args:
        domain: The set of decisions.
        gradient_bound: Upper bound G > 0 on the norm of gradients in the domain.
        horizon: T >= 1, the number of rounds; it learns less well in later ones.
        smoothness: L > 0, the Lipschitz constant of a loss's gradient; G / R if None.
        feedback: ``one-gradient``: the gradient at the decision alone, in which case base learners
            learn from surrogate losses (Section 4). ``multi-gradient``: also those at every base
            learner's decision.
        constants: ``practical``, or ``theory`` for the constants of the proof.
        exp_concave: Whether there are base learners for exp-concave losses. Each takes O(d^2)
            memory and time; without them such losses count as convex.

    Raises:
        ValueError: If an argument is out of range.
    """
    positive(gradient_bound=gradient_bound)
    require(1 <= horizon < np.inf, "horizon", horizon, "at least 1, and finite")
    require(feedback in get_args(Feedback), "feedback", feedback, _one_of(Feedback))
    require(constants in get_args(Kind), "constants", constants, _one_of(Kind))
    radius, center = domain.diameter / 2, domain.center
    smoothness = 1.0 if smoothness is None else smoothness * radius / gradient_bound
    positive(smoothness=smoothness)
    c = (practical if constants == "practical" else theoretical)(smoothness)
    guesses = curvatures(horizon)
    n = len(guesses)  # strongly convex; then one convex, and n exp-concave base learners
    bases = n + 1 + (n if exp_concave else 0)
    strong, exp = np.zeros(bases), np.zeros(bases)
    strong[:n], exp[n + 1 :] = guesses, guesses[: bases - n - 1]
    steps = 1 / (c.c_0 * 2.0 ** np.arange(1, n + 1))
    inner = domain.relative(center, radius)
    step = partial(_descent_steps, c, strong[: n + 1])
    descents = descent_pool(inner, n + 1, step, optimistic=True)
    newtons = newton_pool(inner, c.gamma_exp + guesses / 2, guesses / 2, optimistic=True)

    def decisions(state: Universal) -> Array:
        if isinstance(state.newtons, Newton):
            return np.concatenate([state.descents.decisions, state.newtons.decisions])
        return state.descents.decisions

    def init(start: Array | None) -> Universal:
        x = (started(domain, start) - center) / radius
        prior = steps**2 / np.sum(steps**2)
        uniform = np.full((n, bases), 1 / bases)
        return Universal(
            descents.init(x),
            newtons.init(x) if exp_concave else (),
            slopes=np.zeros(bases),
            moves=np.zeros(bases),
            mid_moves=np.zeros(n),
            mid_logs=np.log(uniform),
            top_logs=np.log(prior),
            mid_weights=uniform,
            mid_decisions=np.tile(x, (n, 1)),
            top_weights=prior,
            decision=x,
        )

    def observe(state: Universal, gradients: Array) -> Universal:
        one = feedback == "one-gradient"
        shape = (domain.dim,) if one else (1 + bases, domain.dim)
        given = checked(gradients, shape, gradient_bound) / gradient_bound
        g = given if one else given[0]
        here = decisions(state)
        linear_losses, surrogates = surrogate_gradients(strong, exp, here, state.decision, g)
        own = surrogates if one else given[1:]
        # The layers above look at where base learners will be, so these go first; the order of
        # lines of Algorithm 1 hides that.
        moved = state._replace(descents=descents.observe(state.descents, own[: n + 1]))
        if isinstance(state.newtons, Newton):
            moved = moved._replace(newtons=newtons.observe(state.newtons, own[n + 1 :]))
        factors = c.lambda_1, c.lambda_2, c.bias, 1 / _DIAMETER
        found = weigh(here, decisions(moved), linear_losses, *state[2:9], steps, *factors)
        return Universal(moved.descents, moved.newtons, linear_losses, *found)

    def act(state: Universal) -> Array:
        return center + radius * state.decision

    def points(state: Universal) -> Array:
        if feedback == "one-gradient":
            return act(state)[None]
        # Not K N of them: base learners hear nothing of the layer that weighs them, so all K
        # copies of one are the same.
        return center + radius * np.concatenate([state.decision[None], decisions(state)])

    return Learner(domain.dim, init, act, observe, points)


def _one_of(names: Any) -> str:
    return " or ".join(get_args(names))


def _descent_steps(c: Constants, guesses: Array, t: int, variations: Array) -> Array:
    """Returns steps of the strongly convex learners (Lemma 12) and, last, the convex one."""
    steps = 2 / (c.gamma_strong + guesses * t)
    steps[-1] = min(_DIAMETER / sqrt(1 + variations[-1]), 1 / c.gamma_convex)
    return steps
