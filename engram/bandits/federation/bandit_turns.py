"""Arrivals of users in a bandit between sites: one user in each turn, with arms.

Every user is a client. Whose turn it is depends on the seed, the turn, and of tables on who takes
part, so every site knows when it is its own turn.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from engram.bandits.environments.classes import classes, read_classes
from engram.bandits.environments.environment import Environment, Round
from engram.bandits.environments.grouped import grouped
from engram.bandits.federation.meta_ban import MetaBan
from engram.bandits.policy import ROUND, generator
from engram.core.checks import must
from engram.data.tables.tables import TableData
from engram.settings.errors import UNNAMED, DataError, Names, Refused
from engram.settings.experiment import Experiment
from engram.tables.site import Rows

GROUPED: Final = {"linear-groups": "linear", "cosine-groups": "cosine"}
"""By data set that is drawn: how rewards depend on features."""

_LONGEST = 2.0


class Arrivals(NamedTuple):
    """The arrivals of users, turn by turn."""

    dim: int  # features d of an arm
    # ``(t, members) -> Round`` of the client whose turn it is, t from 0; None if it is elsewhere.
    # It is one of the members, ascending; of an environment that is drawn, one of all users, and a
    # turn of one who is not there is nobody's.
    turn: Callable[[int, tuple[int, ...]], Round | None]
    names: Names = UNNAMED  # of clients that have names


def grouped_users(reward: str, *, users: int, horizon: int, seed: int) -> Environment:
    """Draws users in three groups of equal size, with different groups in each of two topics."""
    return grouped(
        users=users, groups=3, dim=11, topics=2, horizon=horizon, seed=seed, reward=reward, gap=0.1
    )


def drawn_environment(experiment: Experiment) -> Environment:
    """Returns an environment that is drawn, or made of data sets with classes.

    Raises:
        DataError: If a data set cannot be read, or its number of users differs from num-clients.
    """
    e, own = experiment, experiment.of(MetaBan)
    try:
        if e.dataset in GROUPED:
            reward = GROUPED[e.dataset]
            environment = grouped_users(reward, users=e.num_clients, horizon=e.rounds, seed=e.seed)
        else:
            rows = [read_classes(name, data_dir=Path(e.data_dir)) for name in own.sources(e)]
            groups = own.user_groups or None
            environment = classes(rows, horizon=e.rounds, seed=e.seed, groups=groups)
    except Refused:
        raise
    except ValueError as error:
        raise DataError(f"{e.dataset}: {error}") from error
    if environment.users != e.num_clients:
        wanted = f"the number of clients in {e.dataset}, {environment.users}"
        raise DataError(must("num-clients", e.num_clients, wanted))
    return environment


def drawn_arrivals(experiment: Experiment) -> Arrivals:
    """Returns the arrivals of ``drawn_environment``, with the same errors."""
    environment = drawn_environment(experiment)
    return Arrivals(environment.dim, lambda t, members: environment.round(t))


def table_arrivals(experiment: Experiment, data: TableData) -> Arrivals:
    """Makes arrivals of tables: rows are arms, and the target is the reward.

    In each turn one of the members is drawn uniformly, and ``arms`` of its rows are offered. Regret
    is counted by their rewards.

    Raises:
        DataError: If a number is NaN or infinite, a row is too long, or a reward is not in [0, 1].
    """
    e, arms = experiment, experiment.of(MetaBan).arms
    parts = zip(data.train, data.test, strict=True)  # a bandit learns from all that it is shown
    here = {
        client: _checked(e, data.names.get(client, client), [p for p in held if p is not None])
        for client, held in enumerate(parts)
        if held[0] is not None
    }

    def turn(t: int, members: tuple[int, ...]) -> Round | None:
        rng = generator(e.seed, t, ROUND)
        client = members[rng.integers(len(members))]
        if client not in here:
            return None
        rows = here[client]
        offered = rng.choice(len(rows.y), size=arms, replace=len(rows.y) < arms)
        return Round(client, rows.x[offered], rows.y[offered], rows.y[offered])

    return Arrivals(len(data.columns), turn, data.names)


def _checked(experiment: Experiment, client: int | str, parts: Sequence[Rows]) -> Rows:
    x, y = (np.concatenate([getattr(rows, name) for rows in parts]) for name in ("x", "y"))
    if not np.isfinite(x).all():
        raise DataError(f"client {client}: its rows have NaN or infinity")
    longest = float(np.linalg.norm(x, axis=1).max())
    if longest > _LONGEST:
        raise DataError(
            f"client {client}: a row's features must have a length of at most {_LONGEST:g}, got "
            f"{longest:.3g}: scale the columns, or networks diverge"
        )
    if not ((y >= 0) & (y <= 1)).all():
        raise DataError(
            f"client {client}: {experiment.target_column} must be in [0, 1] in every row: a reward"
        )
    return Rows(x, y)
