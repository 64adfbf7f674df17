"""Runs of hosts that each have one client's rows alone, as nodes do."""

from engram.api import Run
from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.data.source import Source
from engram.server.run import run as run_on
from engram.simulations.grid import InProcessGrid


class Apart:
    def __init__(self, experiment, own):
        opened = [
            Opening(experiment, RamStore(), Source(own(client)), client, [client])
            for client in range(experiment.num_clients)
        ]
        self.hosts = [host_of(opening) for opening in opened]

    def describe(self, hosted):
        return self.hosts[hosted[0]].describe(hosted)

    def train(self, requests):
        return [self.hosts[r.hosted[0]].train([r])[0] for r in requests]

    def evaluate(self, requests):
        return [self.hosts[r.hosted[0]].evaluate([r])[0] for r in requests]


def run_apart(folder, experiment, own=lambda client: ""):
    """Runs an experiment, with a data set of each client where ``own`` names one."""
    grid = InProcessGrid(Apart(experiment, own), [[c] for c in range(experiment.num_clients)])
    run_on(grid, experiment, folder, engine="vectorized")
    return Run(folder)
