"""Nodes of sites in this process, each of which is the ClientApp with a state of its own."""

from engram.client.app import answer_question
from engram.simulations.grid import InProcessGrid
from engram.wire.messages import TRAIN, NodeContext
from engram.wire.wire import CONFIG, ROSTER_QUERY
from tests.sites.budgets import TRAINING, answer_of, at, model_for
from tests.support import small

ROSTER = {CONFIG: {"training": TRAINING}}


def ask(folder, kind=ROSTER_QUERY, content=None, *, run=1, **settings):
    """The answer of a node with its state, and its policy, in a folder."""
    return answer_of(small(**settings), kind, content or {}, run, **at(folder))


def train(folder, server_round=1, **settings):
    """As ``ask``, to train client 0."""
    return ask(folder, TRAIN, model_for(small(**settings), server_round), **settings)


class Sites(InProcessGrid):
    """A grid of nodes: node i + 1 hosts client i, with its state in ``client-i`` of a folder."""

    def __init__(self, experiment, folder, nodes):
        super().__init__(None, [[client] for client in range(nodes)])
        self._config, self._folder, self._nodes = experiment.to_config(), folder, nodes

    def _answer(self, kind, requests):
        return [self._of(request.question) for request in requests]

    def _of(self, message):
        client = message.node - 1
        node = {"partition-id": client, "num-partitions": self._nodes}
        node |= at(self._folder / f"client-{client}")
        return answer_question(message, NodeContext(1, node, self._config))
