"""What a bandit policy for many users is: functions on an explicit state.

In each round a user u_t comes with K arms, rows of d features; the policy plays one of them, and
sees its reward. Regret is what the best arm would have paid more, in expectation (2).

A policy is written once, as a ``Core``, with users numbered from 0, and inputs that are right. A
``Policy`` is what a platform serves users with: it takes their names, and checks what it is given.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from engram.checks import require

__all__ = [
    "Array",
    "Core",
    "Offers",
    "Policy",
    "Runs",
    "best",
    "best_of_each",
    "each",
    "first",
    "generator",
    "policy",
]

Array = npt.NDArray[np.float64]
Name = int | str
S = TypeVar("S")

CHOOSE, UPDATE, INIT, ROUND, WORLD = range(5)  # what random numbers are drawn for

# By how much equal arms' scores may differ, relative to the largest.
_ROUNDING = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 1e-5}


class Core(NamedTuple, Generic[S]):
    """A policy in one run. Its functions are pure but for the generators that they draw from.

    Attributes:
        init: ``rng -> state``, before the first round.
        choose: ``(state, user, arms (K, d), rng) -> (arm, state)``: which one to play.
        update: ``(state, user, x (d,), reward, rng) -> state``: what came of playing ``x``, which
            need not be the arm that was chosen.
    """

    init: Callable[[np.random.Generator], S]
    choose: Callable[[S, int, Array, np.random.Generator], tuple[int, S]]
    update: Callable[[S, int, Array, float, np.random.Generator], S]


class Runs(NamedTuple, Generic[S]):
    """A policy in R independent runs at once: of several seeds, or several settings.

    Attributes:
        init: ``rngs -> state``, from one generator for each run.
        choose: ``(state, users (R,), arms (R, K, d), rngs) -> (arms (R,), state)``.
        update: ``(state, users (R,), x (R, d), rewards (R,), rngs) -> state``.
    """

    init: Callable[[Sequence[np.random.Generator]], S]
    choose: Callable[
        [S, npt.NDArray[np.intp], Array, Sequence[np.random.Generator]],
        tuple[npt.NDArray[np.intp], S],
    ]
    update: Callable[
        [S, npt.NDArray[np.intp], Array, Array, Sequence[np.random.Generator]],
        S,
    ]


def each(cores: Sequence[Core[S]]) -> Runs[tuple[S, ...]]:
    """Returns runs that are played one after the other, each by a core of its own."""

    def choose(
        states: tuple[S, ...],
        users: npt.NDArray[np.intp],
        arms: Array,
        rngs: Sequence[np.random.Generator],
    ) -> tuple[npt.NDArray[np.intp], tuple[S, ...]]:
        runs = zip(cores, states, users.tolist(), arms, rngs, strict=True)
        found = [core.choose(*run) for core, *run in runs]
        return np.array([arm for arm, _ in found]), tuple(state for _, state in found)

    def update(
        states: tuple[S, ...],
        users: npt.NDArray[np.intp],
        x: Array,
        rewards: Array,
        rngs: Sequence[np.random.Generator],
    ) -> tuple[S, ...]:
        runs = zip(cores, states, users.tolist(), x, rewards.tolist(), rngs, strict=True)
        return tuple(core.update(*run) for core, *run in runs)

    return Runs(
        init=lambda rngs: tuple(core.init(rng) for core, rng in zip(cores, rngs, strict=True)),
        choose=choose,
        update=update,
    )


def first(runs: Runs[S]) -> Core[S]:
    """Returns a single run of a policy that is written for several."""

    def choose(state: S, user: int, arms: Array, rng: np.random.Generator) -> tuple[int, S]:
        chosen, state = runs.choose(state, np.array([user]), arms[None], [rng])
        return int(chosen[0]), state

    return Core(
        init=lambda rng: runs.init([rng]),
        choose=choose,
        update=lambda state, user, x, reward, rng: runs.update(
            state, np.array([user]), x[None], np.array([reward]), [rng]
        ),
    )


def best(scores: npt.NDArray[np.floating], rng: np.random.Generator) -> int:
    """Returns the number of the largest of an arm's scores (K,), ties at random.

    All policies choose by it. Scores that differ by no more than rounding tie: the same arm twice
    may get two of them, from a product of matrices. K numbers are drawn, ties or not. -1 if some
    score is not finite: what the policy has learned has diverged.
    """
    lots = rng.random(len(scores))
    if not np.isfinite(scores).all():
        return -1
    top = scores.max()
    slack = _ROUNDING[scores.dtype] * max(abs(top), abs(scores.min()))
    return int(np.where(scores >= top - slack, lots, -1.0).argmax())


def best_of_each(scores: Tensor, rngs: Sequence[np.random.Generator]) -> npt.NDArray[np.intp]:
    """Returns the ``best`` of each run, (R,), from scores (R, K)."""
    return np.array([best(*each) for each in zip(scores.numpy(), rngs, strict=True)])


def generator(seed: int, round_: int, purpose: int) -> np.random.Generator:
    """Returns what a run draws from: a function of its seed, the round, and what it is for."""
    return np.random.default_rng((seed, round_, purpose))


class Offers(NamedTuple, Generic[S]):
    """A policy's state.

    Attributes:
        core: What it has learned.
        dim: d, of arms.
        seed: Of all its random numbers.
        chosen: How often it has chosen.
        updated: How many rewards it has seen.
        users: Each user's number, by name, in the order in which they came.
        open: The arms last offered to a user, by the user's number, until a reward comes.
    """

    core: S
    dim: int
    seed: int
    chosen: int
    updated: int
    users: Mapping[Name, int]
    open: Mapping[int, Array]


class Policy(NamedTuple, Generic[S]):
    """A policy for users with names, who may come at any time. States are never changed.

    Attributes:
        dim: Features d of an arm.
        init: ``seed -> state``, before the first round.
        choose: ``(state, user, arms) -> (arm, state)``: the number, from 0, of the arm to play
            among ``arms``, shape (K, d), K >= 1. ``user`` is an int or a string. Raises
            ``ValueError`` where ``arms`` are not such, or not finite, or what has been learned has
            diverged.
        update: ``(state, user, arm, reward) -> state``: what came of one of the arms last offered
            to this user. Raises ``ValueError`` if it was not offered, or has got its reward, or if
            the reward is out of range.
    """

    dim: int
    init: Callable[[int], Offers[S]]
    choose: Callable[[Offers[S], Name, Array], tuple[int, Offers[S]]]
    update: Callable[[Offers[S], Name, int, float], Offers[S]]


def policy(
    core: Core[S] | Runs[S], dim: int, *, reward_range: tuple[float, float] = (0.0, 1.0)
) -> Policy[S]:
    """Returns what serves users by a core, or by a single run of several.

    Args:
        core: A policy for arms of this dimension, and rewards in [0, 1].
        dim: d, at least 1.
        reward_range: The least and the largest reward that there may be; they are rescaled to
            [0, 1]. Rewards out of range are refused.
    """
    require(dim >= 1, "dim", dim, "at least 1")
    low, high = reward_range
    finite = bool(np.isfinite(low) and np.isfinite(high) and np.isfinite(high - low))
    require(finite and low < high, "reward_range", reward_range, "two finite numbers, in order")
    one = first(core) if isinstance(core, Runs) else core

    def init(seed: int) -> Offers[S]:
        whole = isinstance(seed, (int, np.integer)) and not isinstance(seed, bool)
        require(whole and seed >= 0, "seed", seed, "a whole number, at least 0")
        return Offers(one.init(generator(seed, 0, INIT)), dim, int(seed), 0, 0, {}, {})

    def choose(state: Offers[S], user: Name, arms: Array) -> tuple[int, Offers[S]]:
        offered = _checked_arms(arms, dim)
        users, name = state.users, _checked_name(user)
        number = users.get(name, len(users))
        rng = generator(state.seed, state.chosen, CHOOSE)
        require(state.dim == dim, "the state's arms' dimension", state.dim, str(dim))
        arm, learned = one.choose(state.core, number, offered, rng)
        if arm < 0:
            longest = float(np.linalg.norm(offered, axis=1).max())
            raise ValueError(
                "what the policy has learned must be finite, and has diverged: scale arms to a "
                f"length of 1, got up to {longest:.3g}, or take smaller steps"
            )
        return arm, state._replace(
            core=learned,
            chosen=state.chosen + 1,
            users=users if name in users else {**users, name: number},
            open={**state.open, number: offered},
        )

    def update(state: Offers[S], user: Name, arm: int, reward: float) -> Offers[S]:
        number = state.users.get(_checked_name(user), -1)
        require(
            number in state.open, "user", user, "one that was offered arms since its last reward"
        )
        arms = state.open[number]
        whole = isinstance(arm, (int, np.integer)) and not isinstance(arm, bool)
        known = whole and 0 <= arm < len(arms)
        require(known, "arm", arm, f"one of the {len(arms)} that were offered, from 0")
        value = _checked_reward(reward, low, high)
        rng = generator(state.seed, state.updated, UPDATE)
        scaled = (value - low) / (high - low)
        return state._replace(
            core=one.update(state.core, number, arms[arm], scaled, rng),
            updated=state.updated + 1,
            open={other: kept for other, kept in state.open.items() if other != number},
        )

    return Policy(
        dim=dim,
        init=init,
        choose=choose,
        update=update,
    )


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
    ok = isinstance(user, (int, np.integer, str)) and not isinstance(user, bool)
    require(ok, "user", user, "an int or a string")
    return str(user) if isinstance(user, str) else int(user)  # numpy's own are not for files
