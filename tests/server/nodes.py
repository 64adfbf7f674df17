"""Nodes with tables of their own on a grid in this process, each the ClientApp as nodes run it."""

from engram.client import app as module
from engram.simulations.grid import InProcessGrid
from engram.wire.messages import NodeContext


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

    def ask(self, questions, *, timeout):
        return [self._replied(question) for question in questions]

    def _replied(self, question):
        module._node.cache_clear()
        home = self._state / f"node-{question.node}"
        home.mkdir(parents=True, exist_ok=True)
        config = {"partition-id": question.node - 1, "num-partitions": len(self._each)}
        config |= {"data": self._each[question.node - 1], "state": str(home), "policy": str(home)}
        config |= {"identity": str(home)} if (home / "schema.toml").exists() else {}
        context = NodeContext(1, config | self._options, self._config)
        return module.answer_question(question, context)
