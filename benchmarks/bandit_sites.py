"""Meta-Ban between sites beside one process: ``python -m benchmarks.bandit_sites``.

Plays the preset ``bandits`` with its 20 users at 1, 5 and 20 sites of an in-process grid, all turns
of it (some ten minutes), and counts in how many turns the arm is the one that the library's policy
plays with all users in one place.
"""

import tempfile
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import typer
from rich.console import Console
from rich.table import Table

from client.hosts import table_host
from client.memory import RamStore
from engram.bandits.play import play_policy
from federation.data.arrivals import drawn_environment
from federation.experiment import Experiment, read_defaults
from federation.fingerprint import source_root
from federation.policy import meta_ban_of
from federation.settings import read_settings
from server.bandits import play as play_between
from server.record import RunRecord
from simulations.grid import InProcessGrid

__all__ = ["Found", "between", "main"]


class Found(NamedTuple):
    """What came of a run between sites.

    Attributes:
        alike: Turns in which the arm was that of one place.
        regret: That was told.
        ms: Median milliseconds of a turn.
    """

    alike: int
    regret: float
    ms: float


def between(experiment: Experiment, arms: npt.NDArray[np.intp], sites: int) -> Found:
    """Plays an experiment with its clients at some sites, beside these arms of one place."""
    store, clients = RamStore(), experiment.num_clients
    hosts = [range(site, clients, sites) for site in range(sites)]
    grid = InProcessGrid(table_host(experiment, store), hosts)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        found = play_between(grid, experiment, run, engine="vectorized", memories=store)
        played = [row["arm"] for row in RunRecord.open(run).rows()]
    return Found(int((arms == played).sum()), found["regret"], found["ms-per-round"])


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Turns.")] = 2000,
) -> None:
    """Prints a table."""
    torch.set_num_threads(1)
    preset = read_settings(source_root() / "simulations" / "presets" / "bandits.toml")
    experiment = Experiment.from_config(read_defaults() | preset | {"num-rounds": rounds})
    environment = drawn_environment(experiment)
    policy = meta_ban_of(experiment, environment.dim)
    played = play_policy(policy.batched, [environment], [experiment.seed])
    table = Table("sites", "turns alike", "regret", "ms a turn", title=f"{rounds} turns")
    table.add_row("one place", "", f"{played.regrets[0, -1]:g}", "")
    for sites in (1, 5, 20):
        found = between(experiment, played.arms[0], sites)
        table.add_row(str(sites), str(found.alike), f"{found.regret:g}", f"{found.ms:.0f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
