"""A federation of sites in this process: each node is the ClientApp with a state of its own."""

from flwr.app import Message

from engram.client.app import app
from engram.link.flower import node_context
from engram.simulations.grid import InProcessGrid


class Sites(InProcessGrid):
    """A grid of nodes, of which node i + 1 hosts client i and has its state in a folder.

    Args:
        experiment: The settings.
        folder: Holds ``client-I`` for each node, with its policy and its state.
        nodes: How many there are.
    """

    def __init__(self, experiment, folder, nodes):
        super().__init__(None, [[client] for client in range(nodes)])
        self._config, self._folder, self._nodes = experiment.to_config(), folder, nodes

    def _answer(self, kind, requests):
        return [self._of(request.message) for request in requests]

    def _of(self, message: Message) -> Message:
        client = message.metadata.dst_node_id - 1
        place = str(self._folder / f"client-{client}")
        node = {"partition-id": client, "num-partitions": self._nodes, "state": place}
        node |= {"policy": place}
        return app(message, node_context(1, client + 1, node, self._config))
