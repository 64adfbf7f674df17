"""Nodes with tables of their own on a grid in this process, each the ClientApp as nodes run it."""

import itertools

from flwr.app import Message

from engram.client import app as module
from engram.simulations.grid import InProcessGrid
from engram.wire.messages import local_run, name_message, node_context


class NodesGrid(InProcessGrid):
    """A grid whose node i + 1 hosts client i, with the i-th data set.

    Args:
        experiment: The settings of the run that nodes are told.
        data: Each node's data set.
        state: A folder for the nodes' memories, policies and schemas, in ``node-I``.
        options: More of each node's configuration.
    """

    def __init__(self, experiment, data, state, **options):
        super().__init__(None, [[client] for client in range(len(data))])
        self._config, self._each = experiment.to_config(), data
        self._state, self._options = state, options
        self._messages = itertools.count()
        local_run()

    def push_messages(self, messages):
        found = []
        for message in messages:
            name_message(message, f"question-{next(self._messages)}")
            node = message.metadata.dst_node_id
            module._node.cache_clear()
            home = self._state / f"node-{node}"
            home.mkdir(parents=True, exist_ok=True)
            config = {"partition-id": node - 1, "num-partitions": len(self._each)}
            config |= {"data": self._each[node - 1], "state": str(home), "policy": str(home)}
            config |= {"identity": str(home)} if (home / "schema.toml").exists() else {}
            config |= self._options
            reply: Message = module.app(message, node_context(1, node, config, self._config))
            name_message(reply, f"answer-{next(self._messages)}")
            self._replies[message.metadata.message_id] = reply
            found.append(message.metadata.message_id)
        return found
