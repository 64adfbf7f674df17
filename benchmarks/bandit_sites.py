"""Meta-Ban between sites against one place: ``python -m benchmarks.bandit_sites``.

Plays the preset ``bandits`` with its 20 users at 1, 5 and 20 sites of an in-process grid (about ten
minutes), and counts in how many turns the arm is the one that the library's policy plays with all
users in one place.
"""

import tempfile
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import typer
from rich.table import Table

from engram.bandits.federation.bandit_turns import drawn_environment
from engram.bandits.federation.meta_ban import MetaBan
from engram.bandits.play import play_policy
from engram.cli.console import out
from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.runs.record import RunRecord
from engram.server.run import run as run_on
from engram.settings.experiment import Experiment
from engram.settings.fingerprint import source_root
from engram.settings.settings_files import read_settings
from engram.simulations.grid import InProcessGrid


class SitesResult(NamedTuple):
    """The result of a run between sites."""

    alike: int  # turns with the same arm as in one place
    regret: float  # reported regret
    ms: float  # median milliseconds of a turn


def between(experiment: Experiment, arms: npt.NDArray[np.intp], sites: int) -> SitesResult:
    """Plays an experiment with its clients at ``sites`` sites, compared with one place's arms."""
    store, clients = RamStore(), experiment.num_clients
    hosts = [range(site, clients, sites) for site in range(sites)]
    grid = InProcessGrid(host_of(Opening(experiment, store)), hosts)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        found = run_on(grid, experiment, run, engine="vectorized", memories=store)
        played = [row["arm"] for row in RunRecord.open(run).rows()]
    return SitesResult(int((arms == played).sum()), found["regret"], found["ms-per-round"])


def main(rounds: Annotated[int, typer.Option(min=1, help="Turns.")] = 2000) -> None:
    """Prints a table."""
    torch.set_num_threads(1)
    preset = read_settings(source_root() / "simulations" / "presets" / "bandits.toml")
    experiment = Experiment.from_config(preset | {"num-rounds": rounds})
    environment = drawn_environment(experiment)
    policy = experiment.of(MetaBan).policy(experiment, environment.dim)
    played = play_policy(policy.batched, [environment], [experiment.seed])
    table = Table("sites", "turns alike", "regret", "ms a turn", title=f"{rounds} turns")
    table.add_row("one place", "", f"{played.regrets[0, -1]:g}", "")
    for sites in (1, 5, 20):
        found = between(experiment, played.arms[0], sites)
        table.add_row(str(sites), str(found.alike), f"{found.regret:g}", f"{found.ms:.0f}")
    out.print(table)


if __name__ == "__main__":
    typer.run(main)
