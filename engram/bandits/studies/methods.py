"""Policies for many users, each with a grid of settings for tuning."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np

from engram.bandits.club import club
from engram.bandits.cofiba import cofiba
from engram.bandits.environments.environment import Environment
from engram.bandits.linucb import epsilon_greedy, linucb, random_play
from engram.bandits.locb import locb
from engram.bandits.meta_ban import MetaBan, meta_ban
from engram.bandits.molar import molar
from engram.bandits.neural import neural_bandit
from engram.bandits.policy import BatchedPolicy, Policy, batched
from engram.bandits.sclub import sclub

PolicyArguments = Mapping[str, Any]  # arguments of a policy, numbers and words, by name

META_BAN: Final = "meta-ban"
LINEAR: Final = "linucb-ind"
RANDOM: Final = "random"

_ALPHA: Final = (0.001, 0.01, 0.1, 1.0)
_LAM: Final = _ALPHA[1:]
_HIDDEN: Final = (100,)

_ROOM: Final = 512 * 2**20  # bytes that rows and networks of simultaneous runs may take
_LINEAR: Final = 8  # simultaneous runs of policies without networks; more gain nothing


class TunedPolicy(NamedTuple):
    """A policy."""

    title: str  # its name in tables
    grid: tuple[PolicyArguments, ...]  # settings that tuning tries
    # ``(dim, settings) -> policy``, in as many runs as there are settings.
    make: Callable[[int, Sequence[PolicyArguments]], BatchedPolicy[Any]]
    # Whether there is a network for each user; None if there is no network at all.
    users: bool | None = None


def _grid(**values: Sequence[object]) -> tuple[PolicyArguments, ...]:
    return tuple(dict(zip(values, point, strict=True)) for point in product(*values.values()))


_USUAL: Final = _grid(alpha=_ALPHA, lam=_LAM)  # Section 7


def _linear(
    title: str,
    core: Callable[..., Policy[Any]],
    grid: tuple[PolicyArguments, ...] = _USUAL,
    **fixed: bool,
) -> TunedPolicy:
    def make(dim: int, settings: Sequence[PolicyArguments]) -> BatchedPolicy[Any]:
        return batched([core(dim, **setting, **fixed) for setting in settings])

    return TunedPolicy(title, grid, make)


def _clusters(title: str, core: Callable[..., Policy[Any]]) -> TunedPolicy:
    # The similarity threshold of a cluster is tuned as well, like Meta-Ban's gamma.
    return _linear(title, core, _grid(alpha=(0.01, 0.1), lam=(0.01, 0.1), alpha2=(0.1, 0.3, 1.0)))


def _neural(title: str, **fixed: bool) -> TunedPolicy:
    def make(dim: int, settings: Sequence[PolicyArguments]) -> BatchedPolicy[Any]:
        each = _columns(settings) | fixed
        return neural_bandit(dim, runs=len(settings), hidden=_HIDDEN, **each).batched

    return TunedPolicy(title, _USUAL, make, users=not fixed["shared"])


def meta_bans(dim: int, settings: Sequence[PolicyArguments]) -> MetaBan:
    """Returns Meta-Ban with one run for each setting."""
    return meta_ban(dim, runs=len(settings), hidden=_HIDDEN, **_columns(settings))


def _columns(settings: Sequence[PolicyArguments]) -> dict[str, Any]:
    return {name: np.array([setting[name] for setting in settings]) for name in settings[0]}


METHODS: Final[Mapping[str, TunedPolicy]] = {  # from the simplest on
    RANDOM: TunedPolicy("random", ({},), lambda _, runs: batched([random_play()] * len(runs))),
    "epsilon-greedy": _linear("e-greedy-IND", epsilon_greedy, _grid(epsilon=_ALPHA, lam=_LAM)),
    "linucb-one": _linear("LinUCB-ONE", linucb, shared=True),
    LINEAR: _linear("LinUCB-IND", linucb, shared=False),
    "club": _clusters("CLUB", club),
    "sclub": _clusters("SCLUB", sclub),
    "locb": _clusters("LOCB", locb),
    "cofiba": _clusters("COFIBA", cofiba),
    "molar": _linear(
        "MOLARB", molar, _grid(c=(0.1, 0.3, 1.0), option=("hard", "soft"), history=("batch", "all"))
    ),
    "neural-ucb-one": _neural("NeuUCB-ONE", shared=True),
    "neural-ucb-ind": _neural("NeuUCB-IND", shared=False),
    "neural-ts": _neural("NeuTS-ONE", shared=True, thompson=True),
    META_BAN: TunedPolicy(
        "Meta-Ban",
        # lambda stays 0: gamma, the similarity threshold of a group, matters more.
        _grid(alpha=_ALPHA, gamma=(0.1, 0.4, 0.9)),
        lambda dim, settings: meta_bans(dim, settings).batched,
        users=True,
    ),
}


def runs_at_once(name: str, world: Environment) -> int:
    """Returns the number of simultaneous runs of a method, at least 1."""
    users = METHODS[name].users
    if users is None:
        return _LINEAR
    rows = world.users * min(world.horizon, 256) * (world.dim + 1)
    weights = (world.users if users else 1) * sum(_HIDDEN) * (world.dim + 1)
    return max(1, _ROOM // (4 * (rows + 2 * weights)))
