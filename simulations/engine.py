"""Runs an experiment in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from client.hosts import table_host
from client.memory import RamStore
from client.trainer import Engine, Trainer
from federation.algorithms import TABLES
from federation.data.federated import federated_data
from federation.experiment import Experiment
from federation.noise import simulated_noise
from server.coordinator import coordinate
from server.tables import RUNS
from simulations.grid import InProcessGrid

__all__ = ["simulate"]


def simulate(
    experiment: Experiment,
    folder: Path,
    *,
    engine: Engine = "vectorized",
    on_round: Callable[[dict[str, Any]], None] = lambda row: None,
) -> dict[str, Any]:
    """Runs the experiment, or what is left of it, in this process.

    Args:
        experiment: What to run.
        folder: Where the run is recorded.
        engine: ``vectorized`` trains a cohort at once; ``sequential`` trains one client at a
            time, and says which one fails, and where.
        on_round: Called with each round's metrics.

    Returns:
        The results, as ``server.coordinator.coordinate`` or ``server.exchange.exchange`` has them.

    Raises:
        Refused: If it cannot be run as it is; nothing has been written.
        RunStopped: It diverged, or a round had no usable reply.
    """
    memories, noise = RamStore(), simulated_noise(experiment.seed)
    everyone = range(experiment.num_clients)
    if experiment.algorithm in TABLES:
        grid = InProcessGrid(table_host(experiment, memories), [everyone])
        return RUNS[experiment.algorithm](
            grid, experiment, folder, engine=engine, memories=memories, on_round=on_round
        )
    data = federated_data(experiment)
    trainer = Trainer(experiment, data, memories, engine=engine, noise=noise)
    # One node can send the mean of all its clients, where a mean is all that the server needs.
    hosts = [everyone] if experiment.aggregate().additive else [[client] for client in everyone]
    return coordinate(
        InProcessGrid(trainer, hosts),
        experiment,
        folder,
        engine=engine,
        memories=memories,
        noise=noise,
        on_round=on_round,
    )
