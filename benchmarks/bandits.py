"""Times rounds of collaborative bandits: ``python -m benchmarks.bandits`` prints a table.

A round is a choice and an update, on one core. States are those of late rounds: users' buffers are
full, and their networks differ, so that each arm has its own group. They are compared with a plain
loop over a torch module per user, as in the authors' code.
"""

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import torch
import typer
from rich.table import Table
from threadpoolctl import threadpool_limits
from torch import nn

from benchmarks.harness import in_turns
from engram.bandits.club import club
from engram.bandits.cofiba import cofiba
from engram.bandits.environments.environment import Round
from engram.bandits.environments.grouped import grouped
from engram.bandits.linucb import linucb
from engram.bandits.locb import locb
from engram.bandits.meta_ban import MetaBanState, meta_ban
from engram.bandits.networks import initial
from engram.bandits.neural import NeuralState, neural_bandit
from engram.bandits.policy import CHOOSE, INIT, UPDATE, BatchedPolicy, Policy, batched, generator
from engram.bandits.replay import ReplayBuffer
from engram.bandits.sclub import sclub
from engram.bandits.versioned_tensor import Persistent
from engram.cli.console import out

_BUFFER: Final = 256  # rows of a user
_GAMMA: Final = 0.4
_OWN_WEIGHT, _USER_STEPS, _META_STEPS, _BATCH = 10.0, 4, 8, 16


class Size(NamedTuple):
    """The size of a timed problem."""

    users: int  # number of users
    dim: int  # d
    hidden: tuple[int, ...]  # widths of hidden layers
    most: float  # most milliseconds a round that Meta-Ban may take


SIZES: Final = (
    Size(20, 73, (100,), 5.0),
    Size(20, 73, (100, 100), 5.0),
    Size(20, 793, (100,), 25.0),
    Size(20, 793, (100, 100), 25.0),
    Size(2000, 20, (100,), 25.0),
)


def policies(size: Size) -> dict[str, BatchedPolicy[Any]]:
    """Returns policies by name, each with one run."""
    dim, hidden = size.dim, size.hidden
    linear: dict[str, Callable[..., Policy[Any]]] = {"CLUB": club, "SCLUB": sclub, "COFIBA": cofiba}
    linear |= {"LOCB": locb, "LinUCB-IND": linucb}
    return {
        "Meta-Ban": meta_ban(
            dim,
            hidden=hidden,
            gamma=_GAMMA,
            group_cap=None,
            own_weight=_OWN_WEIGHT,
            user_steps=_USER_STEPS,
            meta_steps=_META_STEPS,
            batch=_BATCH,
            buffer=_BUFFER,
        ).batched,
        "NeuUCB-ONE": neural_bandit(dim, hidden=hidden, buffer=_BUFFER).batched,
        "NeuUCB-IND": neural_bandit(dim, hidden=hidden, shared=False, buffer=_BUFFER).batched,
        **{name: batched([policy(dim, alpha=0.1, lam=0.1)]) for name, policy in linear.items()},
    }


def offers(size: Size, rounds: int) -> list[Round]:
    """Returns rounds of ten arms."""
    environment = grouped(users=size.users, groups=4, dim=size.dim, horizon=rounds, seed=0)
    return [environment.round(t) for t in range(rounds)]


def late(state: Any, size: Size) -> Any:
    """Returns a late state: users' buffers are full, and users' networks, if any, differ."""
    if not isinstance(state, MetaBanState | NeuralState):
        return state
    rng = np.random.default_rng(0)
    shape = (1, size.users, _BUFFER)
    x = rng.normal(size=(*shape, size.dim)).astype(np.float32) / size.dim**0.5
    rows = ReplayBuffer(
        Persistent(torch.from_numpy(x)),
        Persistent(torch.from_numpy(rng.random(shape).astype(np.float32))),
        np.full(shape[:2], _BUFFER),
        _BUFFER,
    )
    drawn = [initial(rng, size.dim, size.hidden) for _ in range(size.users)]
    own = [torch.stack(layer)[None] for layer in zip(*drawn, strict=True)]
    if isinstance(state, MetaBanState):
        thetas = tuple(map(Persistent, own))
        known = np.array([size.users])
        site = state.site._replace(rows=rows, thetas=thetas, lasts=thetas)
        return state._replace(site=site, known=known)
    users = state.thetas[0].read().shape[1]
    if users == 1:  # one network for all
        return state._replace(rows=rows)
    return state._replace(
        rows=rows,
        thetas=tuple(map(Persistent, own)),
        squares=tuple(Persistent(torch.ones_like(w)) for w in own),
    )


# --- A plain loop ----------------------------------------------------------------------------


class PlainMetaBan:
    """Meta-Ban with groups of any size, one user and arm after the other, by autograd.

    It starts with the networks of ``late``, and changes them in place.
    """

    def __init__(self, state: MetaBanState, size: Size) -> None:
        """Copies rows and networks."""
        site = state.site
        stacks = [layer.read()[0] for layer in site.thetas]
        self.users = [_network([layer[user] for layer in stacks]) for user in range(size.users)]
        self.meta = _network([layer[0] for layer in state.meta.theta])
        self.x, self.rewards = site.rows.x.read()[0].clone(), site.rows.rewards.read()[0].clone()
        self.seen = np.full(size.users, _BUFFER)

    def choose(self, user: int, arms: torch.Tensor, rng: np.random.Generator) -> int:
        """Infers a group for each arm, adapts the meta-learner to it, and scores the arm."""
        threshold, uniforms = 0.8 * _GAMMA, rng.random((_META_STEPS, _BATCH))
        adapted, scores = [], []
        for arm in arms:
            with torch.no_grad():
                predictions = [float(network(arm)) for network in self.users]
            near = [
                u
                for u, said in enumerate(predictions)
                if abs(said - predictions[user]) <= threshold
            ]
            network = _network([layer.weight.detach() for layer in _layers(self.meta)])
            for step in uniforms:
                self._step(network, [_row(near, user, uniform) for uniform in step])
            output = network(arm)
            gradients = torch.autograd.grad(output.sum(), list(network.parameters()))
            norm = torch.sqrt(sum((g.square().sum() for g in gradients), torch.zeros(())))
            scores.append(output.item() + 0.01 * norm.item())
            adapted.append(network)
        chosen = int(np.argmax(scores))
        self.meta = adapted[chosen]
        return chosen

    def update(self, user: int, x: torch.Tensor, reward: float, rng: np.random.Generator) -> None:
        """Remembers the row, and trains the user's network."""
        slot = int(self.seen[user]) % _BUFFER
        self.x[user, slot], self.rewards[user, slot] = x, reward
        self.seen[user] += 1
        for uniforms in rng.random((_USER_STEPS, _BATCH)):
            self._step(self.users[user], [(user, int(uniform * _BUFFER)) for uniform in uniforms])

    def _step(self, network: nn.Sequential, rows: Sequence[tuple[int, int]]) -> None:
        users, slots = map(list, zip(*rows, strict=True))
        outputs = network(self.x[users, slots])[:, 0]
        loss = 0.5 * (outputs - self.rewards[users, slots]).square().mean()
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        with torch.no_grad():
            for weight, gradient in zip(network.parameters(), gradients, strict=True):
                weight.sub_(gradient)


def _row(near: Sequence[int], user: int, uniform: float) -> tuple[int, int]:
    """Draws a user of a group and one of its rows; ``user``'s own rows weigh more."""
    weights = [_OWN_WEIGHT if one == user else 1.0 for one in near]
    place = uniform * sum(weights) * _BUFFER
    for one, weight in zip(near, weights, strict=True):
        if place < weight * _BUFFER:
            return one, int(place / weight)
        place -= weight * _BUFFER
    return near[-1], _BUFFER - 1


def _network(weights: Sequence[torch.Tensor]) -> nn.Sequential:
    modules: list[nn.Module] = []
    for weight in weights:
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        layer.weight.data.copy_(weight)
        modules += [layer, nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def _layers(network: nn.Sequential) -> list[nn.Linear]:
    return [module for module in network if isinstance(module, nn.Linear)]


def time_rounds(play: Callable[[int, Round], None], rounds: Sequence[Round]) -> float:
    """Returns core milliseconds a round: the median over the second half of the rounds."""
    half, play_round = len(rounds) // 2, {"": lambda t: play(t, rounds[t])}
    return in_turns(play_round, len(rounds) - half, warm_up=half, clock=time.thread_time)[""]


def served(runs: BatchedPolicy[Any], size: Size) -> Callable[[int, Round], None]:
    """Returns a function that plays a round by a policy."""
    state = late(runs.init([generator(0, 0, INIT)]), size)

    def play(t: int, offer: Round) -> None:
        nonlocal state
        users = np.array([offer.user])
        chosen, state = runs.choose(state, users, offer.arms[None], [generator(0, t, CHOOSE)])
        x, paid = offer.arms[chosen], offer.rewards[chosen]
        state = runs.update(state, users, x, paid, [generator(0, t, UPDATE)])

    return play


def plain(size: Size) -> Callable[[int, Round], None]:
    """Returns a function that plays a round by the plain loop."""
    policy = meta_ban(size.dim, hidden=size.hidden, group_cap=None, buffer=_BUFFER)
    loop = PlainMetaBan(late(policy.init([generator(0, 0, INIT)]), size), size)

    def play(t: int, offer: Round) -> None:
        arms = torch.from_numpy(offer.arms).float()
        chosen = loop.choose(offer.user, arms, generator(0, t, CHOOSE))
        reward = float(offer.rewards[chosen])
        loop.update(offer.user, arms[chosen], reward, generator(0, t, UPDATE))

    return play


def main(
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of each policy; half warm up.")] = (
        200
    ),
) -> None:
    """Prints a table."""
    columns: dict[str, list[str]] = {}
    torch.set_num_threads(1)
    with threadpool_limits(1):
        for size in SIZES:
            offered = offers(size, rounds)
            times = {
                name: time_rounds(served(runs, size), offered)
                for name, runs in policies(size).items()
            }
            times["plain loop"] = time_rounds(plain(size), offered[: max(2, rounds // 10)])
            cells = {name: f"{ms:.2f}" for name, ms in times.items()}
            cells["plain loop / Meta-Ban"] = f"{times['plain loop'] / times['Meta-Ban']:.1f}"
            cells["Meta-Ban at most"] = f"{size.most:g}"
            for name, cell in cells.items():
                columns.setdefault(name, []).append(cell)
    headings = (f"n = {s.users}, d = {s.dim}, {'-'.join(map(str, s.hidden))}" for s in SIZES)
    table = Table("ms of a core a round", *headings)
    for name, row in columns.items():
        table.add_row(name, *row)
    out.print(table)


if __name__ == "__main__":
    typer.run(main)
