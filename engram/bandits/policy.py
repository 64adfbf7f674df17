"""Bandit policies for many users, as functions on an explicit state.

In each round a user u_t arrives with K arms, rows of d features; the policy plays one of them and
sees its reward. Regret is how much more the best arm would have paid in expectation (2).

A ``Policy`` is the algorithm: it knows users by numbers from 0 and trusts its inputs. A
``PolicyServer`` wraps it for a platform: it knows users by name, and checks its inputs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from engram.core.arrays import Array, Ints
from engram.core.checks import require

Name = int | str
S = TypeVar("S")

CHOOSE, UPDATE, INIT, ROUND, SETTING = range(5)  # purposes of random numbers

_LONG = 1.5  # of arms, which policies expect to have a length of 1
# By how much equal arms' scores may differ, relative to the largest.
_ROUNDING = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 1e-5}


class Policy(NamedTuple, Generic[S]):
    """A policy in one run. Its functions are pure but for the state of the generators.

    Attributes:
        init: ``rng -> state``, before the first round.
        choose: ``(state, user, arms (K, d), rng) -> (arm, state)``: the number of the arm to play.
        update: ``(state, user, x (d,), reward, rng) -> state``: learns from the reward of playing
            ``x``, which need not be the arm that was chosen.
    """

    init: Callable[[np.random.Generator], S]
    choose: Callable[[S, int, Array, np.random.Generator], tuple[int, S]]
    update: Callable[[S, int, Array, float, np.random.Generator], S]


class BatchedPolicy(NamedTuple, Generic[S]):
    """A policy in R independent runs at once, with different seeds or settings.

    Attributes:
        init: ``rngs -> state``, from one generator per run.
        choose: ``(state, users (R,), arms (R, K, d), rngs) -> (arms (R,), state)``.
        update: ``(state, users (R,), x (R, d), rewards (R,), rngs) -> state``.
    """

    init: Callable[[Sequence[np.random.Generator]], S]
    choose: Callable[[S, Ints, Array, Sequence[np.random.Generator]], tuple[Ints, S]]
    update: Callable[[S, Ints, Array, Array, Sequence[np.random.Generator]], S]


def batched(policies: Sequence[Policy[S]]) -> BatchedPolicy[tuple[S, ...]]:
    """Combines policies into a batch; they play one after the other."""

    def choose(
        states: tuple[S, ...], users: Ints, arms: Array, rngs: Sequence[np.random.Generator]
    ) -> tuple[Ints, tuple[S, ...]]:
        runs = zip(policies, states, users.tolist(), arms, rngs, strict=True)
        found = [policy.choose(*run) for policy, *run in runs]
        return np.array([arm for arm, _ in found]), tuple(state for _, state in found)

    def update(
        states: tuple[S, ...],
        users: Ints,
        x: Array,
        rewards: Array,
        rngs: Sequence[np.random.Generator],
    ) -> tuple[S, ...]:
        runs = zip(policies, states, users.tolist(), x, rewards.tolist(), rngs, strict=True)
        return tuple(policy.update(*run) for policy, *run in runs)

    return BatchedPolicy(
        lambda rngs: tuple(p.init(rng) for p, rng in zip(policies, rngs, strict=True)),
        choose,
        update,
    )


def diverged(arms: Array, smaller: str) -> str:
    """Words the cause of a divergence: long arms (k, d), or the step size, with its remedy."""
    longest = float(np.linalg.norm(arms, axis=1).max())
    long = f"scale arms to a length of 1, got up to {longest:.3g}"
    return f"must be finite, and has diverged: {long if longest > _LONG else smaller}"


def single_run(runs: BatchedPolicy[S]) -> Policy[S]:
    """Returns a batched policy of one run as a ``Policy``."""

    def choose(state: S, user: int, arms: Array, rng: np.random.Generator) -> tuple[int, S]:
        chosen, state = runs.choose(state, np.array([user]), arms[None], [rng])
        return int(chosen[0]), state

    return Policy(
        init=lambda rng: runs.init([rng]),
        choose=choose,
        update=lambda state, user, x, reward, rng: runs.update(
            state, np.array([user]), x[None], np.array([reward]), [rng]
        ),
    )


def best(scores: npt.NDArray[np.floating], rng: np.random.Generator) -> int:
    """Returns the number of the arm with the largest score (K,), with ties broken at random.

    Scores that differ by no more than rounding count as ties, since a
    product of matrices may give the same arm two scores. K numbers are drawn, ties or not. Returns
    -1 if some score is not finite: the policy's parameters have diverged.
    """
    uniforms = rng.random(len(scores))
    if not np.isfinite(scores).all():
        return -1
    top = scores.max()
    slack = _ROUNDING[scores.dtype] * max(abs(top), abs(scores.min()))
    return int(np.where(scores >= top - slack, uniforms, -1.0).argmax())


def best_of_each(scores: Tensor, rngs: Sequence[np.random.Generator]) -> Ints:
    """Returns ``best`` of each run, (R,), from scores (R, K)."""
    return np.array([best(*each) for each in zip(scores.numpy(), rngs, strict=True)])


def generator(seed: int, round_: int, purpose: int) -> np.random.Generator:
    """Returns the generator of a run for a round and a purpose."""
    return np.random.default_rng((seed, round_, purpose))


class ServerState(NamedTuple, Generic[S]):
    """State of a ``PolicyServer``."""

    learned: S  # the policy's own state
    dim: int  # features d of an arm
    seed: int  # seed of all random numbers
    chosen: int  # number of choices so far
    updated: int  # number of rewards so far
    users: Mapping[Name, int]  # each user's number, by name, in order of arrival
    # The arms last offered to each user whose reward is pending, by the user's number.
    open: Mapping[int, Array]


class PolicyServer(NamedTuple, Generic[S]):
    """A policy for users with names, who may arrive at any time. States are never changed.

    Attributes:
        dim: Features d of an arm.
        init: ``seed -> state``, before the first round.
        choose: ``(state, user, arms) -> (arm, state)``: the number, from 0, of the arm to play
            among ``arms``, shape (K, d), K >= 1. ``user`` is an int or a string. Raises
            ``ValueError`` if ``arms`` have another shape or are not finite, or if the policy's
            parameters have diverged.
        update: ``(state, user, arm, reward) -> state``: learns from the reward of one of the arms
            last offered to this user. Raises ``ValueError`` if the arm was not offered or has
            been rewarded already, or if the reward is out of range.
    """

    dim: int
    init: Callable[[int], ServerState[S]]
    choose: Callable[[ServerState[S], Name, Array], tuple[int, ServerState[S]]]
    update: Callable[[ServerState[S], Name, int, float], ServerState[S]]


def policy_server(
    policy: Policy[S] | BatchedPolicy[S],
    dim: int,
    *,
    reward_range: tuple[float, float] = (0.0, 1.0),
) -> PolicyServer[S]:
    """Wraps a policy, or a batched policy of one run, for users with names.

    Args:
        policy: A policy for arms of this dimension and rewards in an interval of length 1 that
            holds 0, such as [0, 1].
        dim: d, at least 1.
        reward_range: The least and the largest possible reward; others are refused. The policy
            sees rewards over the length of the shortest interval that holds these and 0.

    Zero stays zero: policies have no intercept, and a shift is none that theta' x could take up for
    arms of any length. Over its length c, a reward is R-sub-Gaussian with R <= 1/2 (Hoeffding's
    lemma) and |E r| <= 1, as in [0, 1]. So a policy's width alpha, which theory has grow with R and
    with the norm of theta, is c alpha in units of the rewards.
    """
    require(dim >= 1, "dim", dim, "at least 1")
    low, high = reward_range
    finite = bool(np.isfinite(low) and np.isfinite(high) and np.isfinite(high - low))
    require(finite and low < high, "reward_range", reward_range, "two finite numbers, in order")
    length = max(high, 0.0) - min(low, 0.0)
    one = single_run(policy) if isinstance(policy, BatchedPolicy) else policy

    def init(seed: int) -> ServerState[S]:
        require(_whole(seed) and seed >= 0, "seed", seed, "a whole number, at least 0")
        return ServerState(one.init(generator(seed, 0, INIT)), dim, int(seed), 0, 0, {}, {})

    def choose(state: ServerState[S], user: Name, arms: Array) -> tuple[int, ServerState[S]]:
        offered = _checked_arms(arms, dim)
        users, name = state.users, _checked_name(user)
        number = users.get(name, len(users))
        rng = generator(state.seed, state.chosen, CHOOSE)
        require(state.dim == dim, "the state's arms' dimension", state.dim, str(dim))
        arm, learned = one.choose(state.learned, number, offered, rng)
        if arm < 0:
            told = diverged(offered, "take smaller steps")
            raise ValueError(f"what the policy has learned {told}")
        return arm, state._replace(
            learned=learned,
            chosen=state.chosen + 1,
            users=users if name in users else {**users, name: number},
            open={**state.open, number: offered},
        )

    def update(state: ServerState[S], user: Name, arm: int, reward: float) -> ServerState[S]:
        number = state.users.get(_checked_name(user), -1)
        waits = "one that was offered arms since its last reward"
        require(number in state.open, "user", user, waits)
        arms = state.open[number]
        known = _whole(arm) and 0 <= arm < len(arms)
        require(known, "arm", arm, f"one of the {len(arms)} that were offered, from 0")
        scaled = _checked_reward(reward, low, high) / length
        rng = generator(state.seed, state.updated, UPDATE)
        return state._replace(
            learned=one.update(state.learned, number, arms[arm], scaled, rng),
            updated=state.updated + 1,
            open={other: kept for other, kept in state.open.items() if other != number},
        )

    return PolicyServer(dim=dim, init=init, choose=choose, update=update)


def _whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _checked_arms(arms: Array, dim: int) -> Array:
    try:
        if np.iscomplexobj(arms):
            raise TypeError("complex numbers have no order")
        given = np.array(arms, dtype=np.float64)  # a copy: the caller's may change later
    except (TypeError, ValueError) as error:
        got = f"a {type(arms).__name__} that is not"  # and may be long
        raise ValueError(f"arms must be numbers of shape (K, {dim}), got {got}") from error
    shaped = given.ndim == 2 and given.shape[0] >= 1 and given.shape[1] == dim
    require(shaped, "the arms' shape", given.shape, f"(K, {dim}), K at least 1")
    if not np.isfinite(given).all():
        arm = int(np.argmin(np.isfinite(given).all(axis=1)))
        raise ValueError(f"arms must be finite, got {given[arm].tolist()} for arm {arm}")
    given.setflags(write=False)
    return given


def _checked_reward(reward: float, low: float, high: float) -> float:
    try:
        value = float(reward)
    except (TypeError, ValueError):
        value = np.nan
    require(low <= value <= high, "reward", reward, f"in [{low:g}, {high:g}]")
    return value


def _checked_name(user: Name) -> Name:
    require(isinstance(user, str) or _whole(user), "user", user, "an int or a string")
    return str(user) if isinstance(user, str) else int(user)  # numpy's own are not for files
