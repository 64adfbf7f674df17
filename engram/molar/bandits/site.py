"""One bandit instance (a task) of Algorithms 2 and 5: its rows, its coefficients, its choices.

In a federation this is what a client does. Between the tasks passes once a batch what
``close_batch`` returns, and what ``receive`` takes.
"""

from collections.abc import Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from engram.checks import require
from engram.molar.bandits.methods import TaskEstimator
from engram.molar.site import Rows

__all__ = ["Buffer", "History", "TaskBandit", "TaskState"]

Array = npt.NDArray[np.float64]
Arms = npt.NDArray[np.intp]
History = Literal["batch", "all"]

Sent = TypeVar("Sent")
Reply = TypeVar("Reply")


class Buffer(NamedTuple):
    """Rows that a task has seen.

    Attributes:
        x: Shape (n, d), n >= 0, contexts of the arms chosen.
        y: Shape (n,), their rewards.
        parameter: Shape (n,), which parameter each reward tells of: under Model-C always 0, under
            Model-P the arm.
    """

    x: Array
    y: Array
    parameter: Arms

    def select(self, kept: npt.NDArray[np.bool_]) -> "Buffer":
        """Returns some of the rows, by a mask of shape (n,)."""
        return Buffer(self.x[kept], self.y[kept], self.parameter[kept])

    def of(self, parameter: int) -> Rows:
        """Returns the rows of one parameter."""
        own = self.parameter == parameter
        return Rows(self.x[own], self.y[own])


class TaskState(NamedTuple):
    """What one task remembers.

    Attributes:
        coefs: Shape (P, d), by which it chooses: one parameter (P = 1) under Model-C, one for
            each arm (P = K) under Model-P.
        fresh: Rows since the last estimate, of each parameter.
        past: Rows that estimates have been made of; empty where these are forgotten.
    """

    coefs: Array
    fresh: Buffer
    past: Buffer


class TaskBandit(NamedTuple, Generic[Sent, Reply]):
    """How one task chooses arms and learns. All functions are pure, but for the generator's state.

    Which of the two models it is, shapes say. Model-C has K contexts a round and one parameter:
    contexts (n, K, d) and coefficients (1, d). Model-P has one context and K parameters: (n, 1, d)
    and (K, d). With one arm they are the same.

    Attributes:
        method: How coefficients follow from rows.
        history: ``batch`` forgets rows once an estimate has been made of them, as Algorithm 2
            does. ``all`` (J.3.5) keeps them: what is sent is still an estimate from new rows
            alone, and the task's own step looks at all that it ever saw.
        c_rows: A parameter is estimated at the end of a batch if there are at least
            ``max(c_rows d, d + 2)`` new rows of it; >= 0. (The size that the theory asks for,
            2 C_b (ln(M T) + d ln(L ln(K) / mu)), has constants that nobody knows.)
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

    def choose(self, state: TaskState, contexts: Array, rng: np.random.Generator) -> Arms:
        """Chooses ``argmax_a <x_a, beta_a>`` in each round, ties at random.

        Args:
            state: Before these rounds.
            contexts: Shape (n, K, d) or (n, 1, d), of n rounds of one batch; n >= 0.
            rng: Breaks ties. It is drawn from n K times, ties or not; so a batch at once and
                round by round choose the same.

        Returns:
            Shape (n,), from 0 to K - 1.
        """
        _check_contexts(contexts, state.coefs)
        scores = (contexts * state.coefs).sum(axis=2)
        uniforms = rng.random(scores.shape)
        best = scores == scores.max(axis=1, keepdims=True)
        return np.asarray(np.where(best, uniforms, -1.0).argmax(axis=1))

    def observe(
        self, state: TaskState, contexts: Array, actions: Arms, rewards: Array
    ) -> TaskState:
        """Remembers the rows of the arms that were chosen.

        Args:
            state: Before.
            contexts: As in ``choose``.
            actions: Shape (n,).
            rewards: Shape (n,), those of the actions.
        """
        _check_contexts(contexts, state.coefs)
        for values, name in ((actions, "actions"), (rewards, "rewards")):
            require(values.shape == contexts.shape[:1], f"{name}.shape", values.shape, "(n,)")
        several = contexts.shape[1] > 1
        x = contexts[np.arange(len(actions)), actions if several else 0]
        parameter = actions if len(state.coefs) > 1 else np.zeros_like(actions)
        return state._replace(fresh=_joined(state.fresh, Buffer(x, rewards, parameter)))

    def close_batch(self, state: TaskState) -> tuple[Sent | None, ...]:
        """Returns what the task sends at the end of a batch: of each parameter an estimate.

        None where there are too few new rows. Algorithm 5 counts the rows of a task's arms
        together, and then names a set for each arm; this is decided for each arm by its own rows,
        since it is from them alone that the arm's parameter is estimated.
        """
        return tuple(
            self.method.estimate(state.fresh.of(p)) if enough else None
            for p, enough in enumerate(self._enough(state))
        )

    def receive(self, state: TaskState, replies: Sequence[Reply | None]) -> TaskState:
        """Makes new coefficients of what came back.

        A parameter keeps its coefficients, and its rows wait for the end of a later batch, if
        there are too few new rows of it; also if no answer came (None).
        """
        require(
            len(replies) == len(state.coefs), "replies", len(replies), f"{len(state.coefs)} of them"
        )
        coefs, waits = state.coefs.copy(), np.ones(len(state.fresh.y), dtype=bool)
        known = _joined(state.past, state.fresh)
        for p, (enough, reply) in enumerate(zip(self._enough(state), replies, strict=True)):
            if enough and reply is not None:
                coefs[p] = self.method.personalize(known.of(p), reply)
                waits &= state.fresh.parameter != p
        used = state.past
        if self.history == "all":
            used = _joined(used, state.fresh.select(~waits))
        return TaskState(coefs, state.fresh.select(waits), used)

    def _enough(self, state: TaskState) -> list[bool]:
        parameters, dim = state.coefs.shape
        counts = np.bincount(state.fresh.parameter, minlength=parameters)
        return [bool(count >= max(self.c_rows * dim, dim + 2)) for count in counts]


def _joined(first: Buffer, second: Buffer) -> Buffer:
    return Buffer(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))


def _check_contexts(contexts: Array, coefs: Array) -> None:
    parameters, dim = coefs.shape
    require(
        contexts.ndim == 3
        and contexts.shape[2] == dim
        and (contexts.shape[1] == 1 if parameters > 1 else contexts.shape[1] >= 1),
        "contexts.shape",
        contexts.shape,
        f"(n, 1, {dim}), one for all arms" if parameters > 1 else f"(n, K, {dim})",
    )
