"""Workloads to be timed: federations with random rows, and their rounds on the platform."""

from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from engram.client.hosts.local import LocalHost
from engram.client.memory import RamStore
from engram.cohort.trainer.chunks import Share, in_order, score
from engram.cohort.trainer.trainer import Trainer
from engram.cohort.trainer.worker_pool import training_from_now_on
from engram.core.slots import unflat
from engram.core.types import Params
from engram.data.arrays import Arrays
from engram.data.federated import FederatedData, Split
from engram.data.partitions import partition
from engram.guards.noise import secret_noise
from engram.scoring.score_clients import Scores
from engram.server.roster import query_roster
from engram.settings.experiment import Experiment, read_by
from engram.simulations.grid import InProcessGrid
from engram.simulations.in_process import Direct
from engram.strategies.running.network_strategy import Federated


class Workload(NamedTuple):
    """A federation, and its clients' work in a round."""

    meaning: str  # a short description
    shape: tuple[int, ...]  # shape of one row; there are 10 classes
    settings: dict[str, Any]  # settings that differ from the platform's defaults
    rounds: int  # timed rounds by default


_MLP: Final = {"model": "mlp", "hidden": "40,40", "local-steps": 10, "batch-size": 5}

WORKLOADS: Final = {
    "W1": Workload(
        "50 clients, 20 a round; MLP 784-40-40-10, 10 steps of batch 5",
        (784,),
        _MLP | {"num-clients": 50, "clients-per-round": 20},
        rounds=25,
    ),
    "W2": Workload(
        "1000 clients, 100 a round; as W1",
        (784,),
        _MLP | {"num-clients": 1000, "clients-per-round": 100},
        rounds=25,
    ),
    "W3": Workload(
        "100 clients, 10 a round; CNN of two 5x5 convolutions and 512 hidden, 20 steps of batch 10",
        (1, 28, 28),
        {"model": "cnn", "hidden": "512", "local-steps": 20, "batch-size": 10}
        | {"num-clients": 100, "clients-per-round": 10},
        rounds=3,
    ),
}


def experiment(workload: Workload, **settings: Any) -> Experiment:
    """Returns a workload's experiment, dropping settings that its method does not read."""
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    given = workload.settings | given
    return Experiment.from_config(read_by(str(given.get("method")), given))


def federation(workload: Workload, e: Experiment) -> FederatedData:
    """Returns random rows of grey levels, enough for the partition ``halves``."""
    rng = np.random.default_rng(0)

    def rows(a: int) -> tuple[Any, Any]:
        y = np.repeat(np.arange(10), a * (e.num_clients + 1))
        return rng.integers(0, 256, (len(y), *workload.shape), dtype=np.uint8), y

    arrays = Arrays(*rows(e.rows_per_class), *rows(e.test_rows_per_class), None, None, 10)
    train, test = partition(arrays, e)
    x, y, x_test, y_test = (torch.from_numpy(array).to(e.device) for array in arrays[:4])
    return FederatedData(Split(x, y, train), Split(x_test, y_test, test), 10)


class Platform:
    """The platform on a workload: its strategy and grid, or its trainer alone."""

    def __init__(self, e: Experiment, data: FederatedData, share: Share = in_order) -> None:
        self._experiment = e
        training_from_now_on(e.cpu_threads)
        self.trainer = Trainer(e, data, RamStore())
        host = LocalHost(self.trainer, share)
        grid = InProcessGrid(host, [range(e.num_clients)], Direct(host))
        self._strategy = Federated.build(e, query_roster(grid, e.num_clients), secret_noise)
        self._train = partial(Direct(host).train, grid, self._strategy, before=None, timeout=60)
        self._slots = self._strategy.init()

    def round(self, server_round: int) -> None:
        """Runs a round as ``engram run`` does, without evaluation and records."""
        config = {"durable": server_round - 1, "losses": False, "way": ""}
        self._slots, _ = self._train(server_round, self._slots, config)

    def turn(self, number: int) -> None:
        """Runs the round of a turn, which counts from 0."""
        self.round(number + 1)

    @property
    def slots(self) -> Params:
        """The server's arrays after the last round, by path."""
        return self._slots

    @property
    def model(self) -> Params:
        """The common model after the last round."""
        found: Params = unflat(self._slots)["model"]
        return found

    def scores(self, server_round: int) -> Scores:
        """Scores all clients after the last round."""
        everyone, method = range(self._experiment.num_clients), self._strategy.rounds.merge.method
        slots = unflat(self._strategy.state | self._slots, method.server.start)
        common, own = method.server.send(slots, everyone)
        return score(self.trainer, common, everyone, server_round=server_round, own=own)
