"""Nodes that come late, or go."""

from engram.simulations.grid import InProcessGrid
from engram.wire.wire import config_of


class Late(InProcessGrid):
    """Some nodes are there only after a round has begun, or until it has.

    Args:
        host, hosts: As of any such grid.
        comes: By node, the round in which it is not there yet, and comes.
        goes: By node, the last round in which it is there.
    """

    def __init__(self, host, hosts, comes=(), goes=()):
        super().__init__(host, hosts)
        self.comes, self.goes = dict(comes), dict(goes)
        self.reached = 0

    def get_node_ids(self):
        return [
            node
            for node in super().get_node_ids()
            if self.comes.get(node, 0) <= self.reached <= self.goes.get(node, 10**6)
        ]

    def ask(self, questions, *, timeout):
        questions = list(questions)
        for question in questions:
            self.reached = max(self.reached, config_of(question.content).get("server-round", 0))
        return super().ask(questions, timeout=timeout)
