"""Off-policy estimates, by obp, of the reward of a policy that has stopped learning.

Needs obp: ``pip install -c constraints.txt -e '.[offline]'``.
"""

from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold

from engram.bandits.logged import Logged
from engram.bandits.policy import PolicyServer, ServerState
from engram.core.arrays import Array
from engram.settings.errors import Refused

S = TypeVar("S")

ESTIMATORS: Final = {
    "IPS": "InverseProbabilityWeighting",
    "SNIPS": "SelfNormalizedInverseProbabilityWeighting",
    "DR": "DoublyRobust",
}
"""Their classes in obp. IPS and DR are unbiased; SNIPS is consistent, with less variance."""


class Estimate(NamedTuple):
    """A policy's expected reward a round."""

    # Point estimate; NaN if SNIPS finds no round in which the policy chooses as logged.
    value: float
    low: float  # lower limit of its 95 % interval, by the bootstrap
    high: float  # upper limit


def estimate(
    policy: PolicyServer[S], state: ServerState[S], log: Logged, *, draws: int = 1000
) -> dict[str, Estimate]:
    """Estimates the reward of a policy that has stopped learning, by name of the estimator.

    For a policy that goes on learning, see ``engram.bandits.logged.replay``. The reward model of
    the doubly robust estimate is a ridge regression on the arms' features, fitted to the other
    half of the rounds.

    The state is not changed, and must not have been learned from these rounds. ``draws`` is the
    number of bootstrap samples.

    Raises:
        Refused: obp is not installed, or there are fewer than two rounds.
    """
    try:
        from obp import ope  # noqa: PLC0415 - optional, and slow to import
    except ImportError as error:
        raise Refused(
            "offline estimates need obp: pip install -c constraints.txt -e '.[offline]'"
        ) from error
    if len(log.chosen) < 2:
        raise Refused(f"offline estimates need at least two rounds, got {len(log.chosen)}")
    told: dict[str, Any] = {
        "reward": log.rewards,
        "action": log.chosen,
        "pscore": log.propensities,
        "action_dist": _choices(policy, state, log)[..., None],
        "estimated_rewards_by_reg_model": _expected(log)[..., None],
    }
    found = {}
    for name, title in ESTIMATORS.items():
        estimator = getattr(ope, title)()
        with np.errstate(invalid="ignore"):
            value = float(estimator.estimate_policy_value(**told))
            ends = estimator.estimate_interval(**told, n_bootstrap_samples=draws, random_state=0)
        low, high = (float(ends[f"95.0% CI ({end})"]) for end in ("lower", "upper"))
        found[name] = Estimate(value, low, high)
    return found


def _choices(policy: PolicyServer[S], state: ServerState[S], log: Logged) -> Array:
    """Returns 1 where the policy chooses an arm, else 0, shape (n, K)."""
    choices = np.zeros(log.arms.shape[:2])
    for t, (user, arms) in enumerate(zip(log.users, log.arms, strict=True)):
        # The round's own number, so that a random policy draws anew in each.
        arm, _ = policy.choose(state._replace(chosen=state.chosen + t), user, arms)
        choices[t, arm] = 1.0
    return choices


def _expected(log: Logged) -> Array:
    rounds, count, dim = log.arms.shape
    played = log.arms[np.arange(rounds), log.chosen]
    expected = np.empty((rounds, count))
    for fitted, left in KFold(2, shuffle=True, random_state=0).split(played):
        model = Ridge().fit(played[fitted], log.rewards[fitted])
        expected[left] = model.predict(log.arms[left].reshape(-1, dim)).reshape(-1, count)
    return expected
