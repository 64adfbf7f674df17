"""Nodes that each have a host of their own, and runs where that has one client's rows alone."""

from engram.api import Run
from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.data.source import Source
from engram.server.run import run as run_on
from engram.simulations.grid import InProcessGrid


class Apart:
    """Answers each node by the host of its first client."""

    def __init__(self, hosts):
        self.hosts = hosts

    def describe(self, hosted):
        return self.hosts[hosted[0]].describe(hosted)

    def train(self, requests):
        return [self.hosts[r.hosted[0]].train([r])[0] for r in requests]

    def evaluate(self, requests):
        return [self.hosts[r.hosted[0]].evaluate([r])[0] for r in requests]


def run_apart(folder, experiment, own=lambda client: ""):
    """Runs an experiment, with a data set of each client where ``own`` names one."""
    clients = range(experiment.num_clients)
    opened = [Opening(experiment, RamStore(), Source(own(c)), c, [c]) for c in clients]
    grid = InProcessGrid(Apart([*map(host_of, opened)]), [[client] for client in clients])
    run_on(grid, experiment, folder, engine="vectorized")
    return Run(folder)
