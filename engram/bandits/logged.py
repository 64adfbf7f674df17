"""Logged rounds: evaluates a policy on the rounds of another one (Li et al., 2011).

Lihong Li, Wei Chu, John Langford, Xuanhui Wang: "Unbiased offline evaluation of contextual-bandit-
based news article recommendation algorithms", WSDM 2011.
"""

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from engram.bandits.policy import ROUND, PolicyServer, ServerState, generator
from engram.core.arrays import Array, Ints
from engram.core.checks import require

S = TypeVar("S")


class Logged(NamedTuple):
    """n rounds that some policy has played.

    Attributes:
        users: The user of each round, a number or a string.
        arms: The arms offered, shape (n, K, d).
        chosen: The arm played, in 0, ..., K - 1, shape (n,).
        rewards: Its reward, shape (n,).
        propensities: Probability with which it was drawn, in (0, 1], shape (n,).
    """

    users: tuple[int | str, ...]
    arms: Array
    chosen: Ints
    rewards: Array
    propensities: Array


class Replayed(NamedTuple, Generic[S]):
    """The outcome of a replay.

    Attributes:
        kept: Numbers of the rounds that count, among 0, ..., n - 1, ascending.
        rewards: Their rewards; the mean is the estimate.
        state: The policy's state after them.
    """

    kept: Ints
    rewards: Array
    state: ServerState[S]


def logged(
    users: npt.NDArray[Any],
    arms: Array,
    chosen: npt.NDArray[Any],
    rewards: Array,
    propensities: Array,
) -> Logged:
    """Checks logged rounds and returns them.

    Raises:
        ValueError: If an array does not have the shape or range that ``Logged`` states; the message
            names the first invalid row.
    """
    shaped = arms.ndim == 3 and arms.size > 0
    require(shaped, "arms' shape", arms.shape, "(n, K, d), none of them 0")
    rounds, count, _ = arms.shape
    columns = {"users": users, "chosen": chosen, "rewards": rewards, "propensities": propensities}
    for name, column in columns.items():
        require(column.shape == (rounds,), f"{name}' shape", column.shape, f"({rounds},), as arms")
    require(users.dtype.kind in "iuU", "users", users.dtype, "numbers or strings")
    require(chosen.dtype.kind in "iu", "chosen", chosen.dtype, "numbers of arms")
    for name, column in (("arms", arms), ("rewards", rewards), ("propensities", propensities)):
        require(column.dtype.kind in "iuf", name, column.dtype, "numbers")
    rows = {
        "arms": (np.isfinite(arms).all(axis=(1, 2)), "finite"),
        "chosen": ((chosen >= 0) & (chosen < count), f"in 0, ..., {count - 1}"),
        "rewards": (np.isfinite(rewards), "finite"),
        "propensities": ((propensities > 0) & (propensities <= 1), "in (0, 1]"),
    }
    for name, (right, expected) in rows.items():
        row = int(np.argmin(right))
        value = "NaN or infinity" if name == "arms" else columns[name][row].item()
        require(bool(right.all()), f"{name}[{row}]", value, expected)
    return Logged(tuple(users.tolist()), arms, chosen.astype(np.intp), rewards, propensities)


def replay(policy: PolicyServer[S], log: Logged, seed: int) -> Replayed[S]:
    """Estimates the rewards of a learning policy in place of the logging one.

    The policy is asked in each logged round. If it chooses the logged arm, the round is kept with
    probability min_s p_s / p, where p is the round's propensity, and the policy sees the reward.
    All other rounds are dropped, and leave the policy's state unchanged. So every round is kept
    with probability min_s p_s, whatever the policy plays: the rounds kept are a random sample, and
    the mean of their rewards is unbiased if every arm was played with a probability of at least
    min_s p_s. If arms were drawn uniformly, all rounds in which the two policies agree are kept (Li
    et al., Algorithm 2), about n / K.

    Args:
        policy: The policy to evaluate.
        log: Logged rounds, with arms of the policy's dimension and rewards in its range.
        seed: Seed of the policy, and of which rounds are kept.
    """
    state = policy.init(seed)
    least = log.propensities.min()
    kept = []
    for t, user in enumerate(log.users):
        arm, after = policy.choose(state, user, log.arms[t])
        keep = generator(seed, t, ROUND).random() * log.propensities[t] < least
        if arm == log.chosen[t] and keep:
            state = policy.update(after, user, arm, float(log.rewards[t]))
            kept.append(t)
        else:  # but the next choice is drawn anew
            state = state._replace(chosen=after.chosen)
    found = np.array(kept, dtype=np.intp)
    return Replayed(found, log.rewards[found], state)
