"""Server steps from a round's mean update, the platform's and Flower's own, compared.

All of them ask all clients in every round, and see the same updates for the same model.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from flwr.serverapp.strategy import FedAdam, FedYogi

from engram.client.hosts.local import LocalHost
from engram.client.memory import RamStore
from engram.cohort.trainer.trainer import Trainer
from engram.core.method import FromMean, Method, Slots, Update
from engram.core.slots import flat, unflat
from engram.core.streams import Stream, torch_generator
from engram.core.tree import interpolate
from engram.core.types import Params
from engram.data.federated import FederatedData, model_for
from engram.guards.merge import Merge
from engram.online.server_step import universal_step
from engram.server.engine import Engine
from engram.server.roster import query_roster
from engram.settings.errors import RunStopped
from engram.settings.experiment import Experiment
from engram.settings.method_for_data import server_side
from engram.simulations.grid import InProcessGrid
from engram.strategies.running.network_strategy import Federated
from engram.strategies.running.rounds import Rounds
from engram.wire.flower import HostGrid

_WIDTH = 5  # a grid begins with 2^-5 to 2^5 times the default
_WIDEST = 20


Train = Callable[[int, Params], Params]
"""``(server_round, slots) -> slots``: trains one round."""
Build = Callable[[float, Experiment, FederatedData, Engine], tuple[Params, Train]]
"""Returns the first slots, and the rounds with a step size or radius."""


class ServerStep(NamedTuple):
    """A server step."""

    title: str  # its name in tables
    default: float  # its default step size or radius
    build: Build


def _ours(stepping: Callable[[Method, float], Method]) -> Build:
    def build(size: float, e: Experiment, _: FederatedData, grid: Engine) -> tuple[Params, Train]:
        roster = query_roster(grid, e.num_clients)
        method, shapes, running = server_side(e, roster.kind)
        method = stepping(method, size)
        all_alike = {"max_weight": math.inf, "clients_per_round": e.num_clients}
        e = e.model_copy(update={**all_alike, "server_step": "replace"})
        strategy = Federated(Rounds(Merge(e, method, running), shapes), roster)

        def train(server_round: int, slots: Params) -> Params:
            return grid.train(strategy, server_round, slots, {}, timeout=e.timeout).model

        return strategy.init(), train

    return build


def _part_of_the_way(method: Method, size: float) -> Method:
    def merge(server: Slots, mean: Update) -> Slots:
        return server | {"model": interpolate(server["model"], mean.slots["model"], size)}

    return method._replace(server=method.server._replace(merge=FromMean(merge, "rows")))


def _flowers(kind: type[FedAdam | FedYogi]) -> ServerStep:
    def build(
        size: float, e: Experiment, data: FederatedData, grid: Engine
    ) -> tuple[Params, Train]:
        # One node hosts all clients.
        strategy = kind(eta=size, min_train_nodes=1, min_available_nodes=1)
        return flat({"model": first_model(e, data)}), partial(HostGrid(grid).train, strategy)

    default = float(inspect.signature(kind).parameters["eta"].default)
    return ServerStep(kind.__name__, default, build)


STEPS: Final[dict[str, ServerStep]] = {
    "universal": ServerStep("universal", 10.0, _ours(universal_step)),
    "fedavg": ServerStep("FedAvg", 1.0, _ours(_part_of_the_way)),
    "fedadam": _flowers(FedAdam),
    "fedyogi": _flowers(FedYogi),
}


class RoundModels(NamedTuple):
    """The models of a round of training."""

    server_round: int  # its number, from 1
    model: Params  # the model at its beginning
    merged: Params  # the model at its end


def first_model(e: Experiment, data: FederatedData) -> Params:
    """Returns the model of round 1."""
    network = model_for(e, data.kind)
    return network.init(torch_generator(e.seed, Stream.MODEL))


def train_rounds(
    e: Experiment, data: FederatedData, step: ServerStep, size: float
) -> Iterator[RoundModels]:
    """Trains an experiment's rounds with a server step of the given size or radius.

    Raises:
        RunStopped: If it diverged.
    """
    grid = InProcessGrid(LocalHost(Trainer(e, data, RamStore())), [range(e.num_clients)])
    slots, train = step.build(size, e, data, grid)
    for server_round in range(1, e.num_rounds + 1):
        merged = train(server_round, slots)
        yield RoundModels(server_round, unflat(slots)["model"], unflat(merged)["model"])
        slots = merged


def tune(score: Callable[[float], float], default: float) -> dict[float, float]:
    """Returns scores by size, on a grid of factors of 2 around the default.

    Lower scores are better, and infinite if a run diverges. The grid is extended until the best
    size is not at an end, or is 2^20 times or 2^-20 of the default.
    """
    found: dict[int, float] = {}

    def look(power: int) -> None:
        try:
            value = score(default * 2.0**power)
        except RunStopped:
            value = math.inf
        found[power] = value if math.isfinite(value) else math.inf

    for power in range(-_WIDTH, _WIDTH + 1):
        look(power)
    while (best := min(found, key=found.__getitem__)) in (min(found), max(found)):
        if abs(best) >= _WIDEST:
            break
        look(best + (1 if best > 0 else -1))
    return {default * 2.0**power: found[power] for power in sorted(found)}
