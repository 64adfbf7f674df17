"""The universal ensemble: one learner for losses of unknown curvature.

Yan, Zhao, Zhou. Universal Online Learning with Gradient Variations: A Multi-layer Online Ensemble
Approach. NeurIPS 2023. Equations, lemmas and Algorithm 1 in this folder are that paper's.

Base learners guess the curvature; K copies of MsMwC, each with a step size of its own, weigh them;
and one more weighs these. For strongly convex losses regret grows as log V_T, for exp-concave ones
as d log V_T, for convex ones as sqrt(V_T log V_T), where V_T is how much gradients change from
round to round; V_T = 0 for a fixed loss (Theorems 1 and 2).
"""

from math import ceil, log2
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.checks import require
from engram.online.bases import Descent, Newton, descent_pool, newton_pool, started
from engram.online.domains import Domain
from engram.online.kernels import equalize, tilt
from engram.online.learner import Learner, checked

__all__ = ["Constants", "Feedback", "Universal", "curvatures", "universal_ensemble"]

Array = npt.NDArray[np.float64]
Feedback = Literal["one-gradient", "multi-gradient"]

_DIAMETER = 2.0  # D, where G is 1: in these units a strong convexity is at most 2 G / D = 1


class Constants(NamedTuple):
    """Of Algorithm 1, in units in which D = 2 and G = 1.

    Attributes:
        c_0: C_0; the top layer's largest step is 1 / (2 C_0).
        lambda_1: Weight of the top layer's correction.
        lambda_2: Of the middle layers'.
        gamma_strong: Lemma 12's gamma.
        gamma_exp: Lemma 11's.
        gamma_convex: Lemma 10's.
    """

    c_0: float
    lambda_1: float
    lambda_2: float
    gamma_strong: float
    gamma_exp: float
    gamma_convex: float


def practical(smoothness: float) -> Constants:
    """Returns constants that work: those of the proof hardly let a decision move.

    Without corrections and with gamma = L decisions are unstable; with lambda_1 = 4 logistic losses
    are not learned.
    """
    gamma = smoothness + 4
    return Constants(1.0, 1.0, 2.0, gamma, gamma, gamma)


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
    c_0 = max(
        128.0,
        8 * _DIAMETER,
        8 * lambda_1 * d_2,
        64 * d_2 * c_3,
        4 * d_2 * c_4,
        8 * c_2 * d_2 / (8 * g_2 + lambda_2),
    )
    # With the text's 8 G^2 + lambda_2 for exp-concave losses the last coefficient of the proof,
    # lambda_2 + 16 G^4 / gamma - gamma / 4, would be positive.
    return Constants(
        c_0,
        lambda_1,
        lambda_2,
        gamma_strong=8 * lambda_2 + 512 * strong,
        gamma_exp=4 * lambda_2 + 8 * g_2,
        gamma_convex=4 * lambda_2 + 8 * g_2,
    )


def curvatures(horizon: int) -> Array:
    """Returns the pool (2.1): 1/T, 2/T, 4/T, ..., 1."""
    return np.minimum(2.0 ** np.arange(ceil(log2(horizon)) + 1) / horizon, 1.0)


class Universal(NamedTuple):
    """State of the ensemble, before a round; all of it where the ball has radius 1 and G is 1.

    Attributes:
        strong: Of the learners for strongly convex losses.
        exp: Of those for exp-concave losses; None if they are left out.
        convex: Of the one for convex losses.
        slopes: <g, x_i - x> of the last round, for each base learner: shape (N,).
        moves: |x_i - x_i before|^2 of each, shape (N,).
        mid_moves: Of each middle layer's decision, shape (K,).
        mid_logs: log p-hat, shape (K, N).
        top_logs: log q-hat, shape (K,).
        mid_weights: p, of this round, shape (K, N).
        top_weights: q, shape (K,).
        mid_decisions: x_k, shape (K, d).
        decision: x, shape (d,).
    """

    strong: Descent
    exp: Newton | tuple[()]
    convex: Descent
    slopes: Array
    moves: Array
    mid_moves: Array
    mid_logs: Array
    top_logs: Array
    mid_weights: Array
    top_weights: Array
    mid_decisions: Array
    decision: Array


def universal_ensemble(
    domain: Domain,
    *,
    gradient_bound: float,
    horizon: int,
    smoothness: float | None = None,
    feedback: Feedback = "one-gradient",
    constants: Literal["practical", "theory"] = "practical",
    exp_concave: bool = True,
) -> Learner[Universal]:
    """Builds Algorithm 1.

    It works in units of the domain's radius R = D / 2 and of G, so that the guesses of curvature,
    1/T to 1, cover all there can be, and the same problem in other units gets the same decisions.

    Args:
        domain: Of decisions.
        gradient_bound: G > 0: no gradient in the domain is longer.
        horizon: T >= 1, the number of rounds; of more than these it learns less well.
        smoothness: L > 0, how fast a loss's gradient changes; G / R if None.
        feedback: Whether it looks at the gradient at its decision alone, in which case base
            learners learn from surrogate losses (Section 4), or at every base learner's decision.
        constants: Whether to use those that work or those of the proof.
        exp_concave: Whether there are base learners for exp-concave losses. They take O(d^2)
            numbers and operations each; without them such losses count as convex.

    Raises:
        ValueError: An argument is not as said.
    """
    require(0 < gradient_bound < np.inf, "gradient_bound", gradient_bound, "finite and positive")
    require(horizon >= 1, "horizon", horizon, "at least 1")
    radius, center = domain.diameter / 2, domain.center
    smoothness = 1.0 if smoothness is None else smoothness * radius / gradient_bound
    require(0 < smoothness < np.inf, "smoothness", smoothness, "finite and positive")
    c = (practical if constants == "practical" else theoretical)(smoothness)
    inner = domain.relative(center, radius)
    guesses = curvatures(horizon)
    strong = descent_pool(
        inner, len(guesses), lambda t, v: 2 / (c.gamma_strong + guesses * t), optimistic=True
    )
    exp = newton_pool(inner, c.gamma_exp + guesses / 2, guesses / 2, optimistic=True)
    convex = descent_pool(
        inner,
        1,
        lambda t, v: np.minimum(_DIAMETER / np.sqrt(1 + v), 1 / c.gamma_convex),
        optimistic=True,
    )
    steps = 1 / (c.c_0 * 2.0 ** np.arange(1, len(guesses) + 1))
    bases = len(guesses) * (2 if exp_concave else 1) + 1

    def decisions(state: Universal) -> Array:
        parts = [state.strong.decisions, state.convex.decisions]
        if isinstance(state.exp, Newton):
            parts.insert(1, state.exp.decisions)
        return np.concatenate(parts)

    def init(start: Array | None) -> Universal:
        x = (started(domain, start) - center) / radius
        prior = np.log(steps**2 / np.sum(steps**2))
        uniform = np.full((len(steps), bases), -np.log(bases))
        return Universal(
            strong.init(x),
            exp.init(x) if exp_concave else (),
            convex.init(x),
            slopes=np.zeros(bases),
            moves=np.zeros(bases),
            mid_moves=np.zeros(len(steps)),
            mid_logs=uniform,
            top_logs=prior,
            mid_weights=np.exp(uniform),
            top_weights=np.exp(prior),
            mid_decisions=np.tile(x, (len(steps), 1)),
            decision=x,
        )

    def surrogates(state: Universal, g: Array, slopes: Array) -> Array:
        """Gradients, at the base learners' decisions, of the losses they learn from (Section 4)."""
        n = len(guesses)
        g_strong = g + guesses[:, None] * (state.strong.decisions - state.decision)
        g_exp = np.outer(1 + guesses * slopes[n:-1], g) if exp_concave else np.empty((0, len(g)))
        return np.concatenate([g_strong, g_exp, g[None]])

    def observe(state: Universal, gradients: Array) -> Universal:
        n = len(guesses)
        one = feedback == "one-gradient"
        shape = (domain.dim,) if one else (1 + bases, domain.dim)
        given = checked(gradients, shape, gradient_bound) / gradient_bound
        g = given if one else given[0]
        here = decisions(state)
        slopes = (here - state.decision) @ g
        own = surrogates(state, g, slopes) if one else given[1:]
        # The layers above look at where base learners will be, so these go first; the order of
        # lines of Algorithm 1 hides that.
        state = state._replace(
            strong=strong.observe(state.strong, own[:n]),
            exp=exp.observe(state.exp, own[n:-1]) if isinstance(state.exp, Newton) else (),
            convex=convex.observe(state.convex, own[-1:]),
        )
        return _weigh(state, here, decisions(state), slopes, steps, c)

    def act(state: Universal) -> Array:
        return center + radius * state.decision

    def points(state: Universal) -> Array:
        if feedback == "one-gradient":
            return act(state)[None]
        # Not K N of them: base learners hear nothing of the layer that weighs them, so all K
        # copies of one are the same.
        return center + radius * np.concatenate([state.decision[None], decisions(state)])

    return Learner(domain.dim, init, act, observe, points)


def _weigh(
    state: Universal, here: Array, there: Array, slopes: Array, steps: Array, c: Constants
) -> Universal:
    """Lines 5 and 6: both layers of weights learn from the round, and look ahead.

    Losses are divided by G D. Where all losses, or all of optimism, have the same number added,
    weights stay the same, and so <g, x> is left out: of this round, and of the next, which nobody
    knows.

    Args:
        state: Before the round, but for base learners.
        here: Base learners' decisions in the round, shape (N, d).
        there: In the next.
        slopes: <g, here - x>, shape (N,).
        steps: eta_k, shape (K,).
        c: Of the algorithm.
    """
    unit = 1 / _DIAMETER
    mid_steps = 2 * steps[:, None]
    surprise = unit * (slopes - state.slopes)  # losses - optimism; corrections cancel
    losses = unit * (slopes + c.lambda_2 * state.moves)
    mid_logs = tilt(state.mid_logs, mid_steps * (losses + 16 * mid_steps * surprise**2))
    losses = unit * (state.mid_weights @ slopes + c.lambda_1 * state.mid_moves)
    bias = 16 * steps * (state.mid_weights @ surprise) ** 2
    top_logs = equalize(state.top_logs, steps, losses + bias)

    moves = np.sum((there - here) ** 2, axis=1)
    mid_weights = np.exp(tilt(mid_logs, mid_steps * unit * (slopes + c.lambda_2 * moves)))
    mid_decisions = mid_weights @ there
    mid_moves = np.sum((mid_decisions - state.mid_decisions) ** 2, axis=1)
    hints = unit * (mid_weights @ slopes + c.lambda_1 * mid_moves)
    top_weights = np.exp(equalize(top_logs, steps, hints))
    return state._replace(
        slopes=slopes,
        moves=moves,
        mid_moves=mid_moves,
        mid_logs=mid_logs,
        top_logs=top_logs,
        mid_weights=mid_weights,
        top_weights=top_weights,
        mid_decisions=mid_decisions,
        decision=top_weights @ mid_decisions,
    )
