"""One bandit instance (a task) of Algorithms 2 and 5: its rows, coefficients and choices.

In a federation this is the client's part. Once per batch a task sends what ``close_batch`` returns,
and gets what ``receive`` takes.
"""

from collections.abc import Callable, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np

from engram.core.arrays import Array, Bools, Ints
from engram.core.checks import require
from engram.tables.bandits.environments import TaskEnvironment
from engram.tables.site import Rows

History = Literal["batch", "all"]

Sent = TypeVar("Sent")
Reply = TypeVar("Reply")


class TaskEstimator(NamedTuple, Generic[Sent, Reply]):
    """An estimator for tasks that share through a server, as pure functions.

    Attributes:
        estimate: The task's part: maps the rows of one parameter, at least d + 2, to what it sends.
        combine: The server's part: maps what was sent, by at least one task, to a reply for each
            task; None if there is no estimate yet.
        personalize: The task's part: maps its rows and the reply to coefficients, shape (d,).
    """

    estimate: Callable[[Rows], Sent]
    combine: Callable[[Sequence[Sent]], Sequence[Reply | None]]
    personalize: Callable[[Rows, Reply], Array]


class Buffer(NamedTuple):
    """Rows that a task has seen."""

    x: Array  # contexts of the arms chosen, shape (n, d), n >= 0
    y: Array  # their rewards, shape (n,)
    # The parameter that each reward depends on, shape (n,): always 0 under Model-C, the arm under
    # Model-P.
    parameter: Ints

    def select(self, kept: Bools) -> "Buffer":
        """Returns some of the rows, by a mask of shape (n,)."""
        return Buffer(self.x[kept], self.y[kept], self.parameter[kept])

    def of(self, parameter: int) -> Rows:
        """Returns the rows of one parameter."""
        own = self.parameter == parameter
        return Rows(self.x[own], self.y[own])


class TaskState(NamedTuple):
    """State of one task."""

    # Coefficients for choosing arms, shape (P, d): one parameter (P = 1) under Model-C, one per arm
    # (P = K) under Model-P.
    coefs: Array
    fresh: Buffer  # rows since the last estimate of their parameter
    past: Buffer  # rows already used in estimates; empty if these are forgotten


class TaskBandit(NamedTuple, Generic[Sent, Reply]):
    """Policy of one task, which chooses arms and learns. All is pure but for the generator's state.

    Shapes determine the model. Model-C has K contexts a round and one parameter:
    contexts (n, K, d) and coefficients (1, d). Model-P has one context and K parameters: (n, 1, d)
    and (K, d). With one arm they are the same.

    Attributes:
        method: The estimator of coefficients.
        history: ``batch`` forgets rows after they have been used in an estimate, as Algorithm 2
            does. ``all`` (J.3.5) keeps them: the task still sends an estimate from new rows alone,
            but its own step uses all rows.
        c_rows: A parameter is estimated at the end of a batch if it has at least
            ``max(c_rows d, d + 2)`` new rows; >= 0. (The size required by the theory,
            2 C_b (ln(M T) + d ln(L ln(K) / mu)), has unknown constants.)
    """

    method: TaskEstimator[Sent, Reply]
    history: History
    c_rows: float

    def init(self, parameters: int, dim: int) -> TaskState:
        """Returns the state before the first round: coefficients 0, so that all arms tie."""
        require(parameters >= 1, "parameters", parameters, "at least 1")
        require(dim >= 1, "dim", dim, "at least 1")
        none = Buffer(np.empty((0, dim)), np.empty(0), np.empty(0, dtype=np.intp))
        return TaskState(np.zeros((parameters, dim)), none, none)

    def choose(self, state: TaskState, contexts: Array, rng: np.random.Generator) -> Ints:
        """Chooses ``argmax_a <x_a, beta_a>`` in each round, ties at random.

        Args:
            state: The state before these rounds.
            contexts: Contexts of n >= 0 rounds of one batch, shape (n, K, d) or (n, 1, d).
            rng: Breaks ties. It draws n K numbers, ties or not, so that choosing for a batch at
                once or round by round gives the same arms, shape (n,).
        """
        _check_contexts(contexts, state.coefs)
        scores = (contexts * state.coefs).sum(axis=2)
        uniforms = rng.random(scores.shape)
        best = scores == scores.max(axis=1, keepdims=True)
        return np.asarray(np.where(best, uniforms, -1.0).argmax(axis=1))

    def observe(
        self, state: TaskState, contexts: Array, actions: Ints, rewards: Array
    ) -> TaskState:
        """Stores the rows of the arms chosen, ``actions`` (n,), with their ``rewards`` (n,)."""
        _check_contexts(contexts, state.coefs)
        for values, name in ((actions, "actions"), (rewards, "rewards")):
            require(values.shape == contexts.shape[:1], f"{name}.shape", values.shape, "(n,)")
        several = contexts.shape[1] > 1
        x = contexts[np.arange(len(actions)), actions if several else 0]
        parameter = actions if len(state.coefs) > 1 else np.zeros_like(actions)
        return state._replace(fresh=_joined(state.fresh, Buffer(x, rewards, parameter)))

    def play(
        self, state: TaskState, rounds: TaskEnvironment, rng: np.random.Generator
    ) -> tuple[TaskState, Ints, Array]:
        """Plays rounds of one batch: the state after them, the arms chosen, and their rewards."""
        arms = self.choose(state, rounds.contexts, rng)
        rewards = rounds.rewards[np.arange(len(arms)), arms]
        return self.observe(state, rounds.contexts, arms, rewards), arms, rewards

    def close_batch(self, state: TaskState) -> tuple[Sent | None, ...]:
        """Estimates each parameter at the end of a batch: the task's message.

        None where there are too few new rows. Algorithm 5 counts the rows of a task's arms
        together, although it then has a set of tasks for each arm; here each arm is decided by its
        own rows, since its parameter is estimated from them alone.
        """
        return tuple(
            self.method.estimate(state.fresh.of(p)) if enough else None
            for p, enough in enumerate(self.enough(state))
        )

    def receive(self, state: TaskState, replies: Sequence[Reply | None]) -> TaskState:
        """Computes new coefficients from the replies.

        If a parameter has too few new rows or no reply (None), it keeps its coefficients, and its
        rows wait for a later batch.
        """
        given, parameters = len(replies), len(state.coefs)
        require(given == parameters, "replies", given, f"{parameters} of them")
        coefs, waits = state.coefs.copy(), np.ones(len(state.fresh.y), dtype=bool)
        known = _joined(state.past, state.fresh)
        for p, (enough, reply) in enumerate(zip(self.enough(state), replies, strict=True)):
            if enough and reply is not None:
                coefs[p] = self.method.personalize(known.of(p), reply)
                waits &= state.fresh.parameter != p
        used = state.past
        if self.history == "all":
            used = _joined(used, state.fresh.select(~waits))
        return TaskState(coefs, state.fresh.select(waits), used)

    def enough(self, state: TaskState) -> list[bool]:
        """Returns whether each parameter has enough new rows for an estimate."""
        parameters, dim = state.coefs.shape
        counts = np.bincount(state.fresh.parameter, minlength=parameters)
        return [bool(count >= max(self.c_rows * dim, dim + 2)) for count in counts]


def _joined(first: Buffer, second: Buffer) -> Buffer:
    return Buffer(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))


def _check_contexts(contexts: Array, coefs: Array) -> None:
    parameters, dim = coefs.shape
    shape, alike = contexts.shape, parameters > 1
    fits = len(shape) == 3 and shape[2] == dim and (shape[1] == 1 if alike else shape[1] >= 1)
    wanted = f"(n, 1, {dim}), one for all arms" if alike else f"(n, K, {dim})"
    require(fits, "contexts.shape", shape, wanted)
