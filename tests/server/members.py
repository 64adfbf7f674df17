"""A federation in this process whose members and nodes come and go by a script."""

import numpy as np

from engram.data.source import data
from tests.server.nodes import NodesGrid

CLIENTS = 4
# Round: members, and those of them that are on line. Client 3 comes in round 2; 0 is away in
# round 3, and 1 leaves before round 4.
SCRIPT = {
    0: ({0, 1, 2}, {0, 1, 2}),
    1: ({0, 1, 2}, {0, 1, 2}),
    2: ({0, 1, 2, 3}, {0, 1, 2, 3}),
    3: ({0, 1, 2, 3}, {1, 2, 3}),
    4: ({0, 2, 3}, {0, 2, 3}),
    5: ({0, 2, 3}, {0, 2, 3}),
}


class ScriptedFederation(NodesGrid):
    """Nodes with data of their own, as members of a federation that a script has."""

    def __init__(self, experiment, state, script=SCRIPT, first=0, rows="members-rows"):
        super().__init__(experiment, [rows] * CLIENTS, state)
        self.script, self.membership, self.clients = script, self, 3
        self.stage(first, training=False)

    def stage(self, server_round, *, training):
        members, there = self.script[server_round]
        self._members, self._there = frozenset(members), sorted(there if training else members)

    def members(self):
        return self._members

    def is_whole(self, experiment):
        return experiment.num_clients == self.clients

    def get_node_ids(self):
        return [client + 1 for client in self._there]


@data
def members_rows(client):
    """Returns a client's rows, of three classes."""
    rng, n = np.random.default_rng([7, client]), 28 + 5 * client
    y = rng.integers(0, 3, n)
    centers = np.random.default_rng(7).normal(size=(3, 6))
    return (centers[y] + rng.normal(size=(n, 6)) + 0.3 * client).astype(np.float32), y


ROWS = "members-rows"
"""The data set that this function is."""
