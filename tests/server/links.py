"""A link to a SuperLink and its nodes, on a clock of our own."""

import copy
import itertools
from types import SimpleNamespace

import numpy as np
import torch
from flwr.app import Error as MessageError
from flwr.app import Message
from flwr.serverapp import Grid

from engram.server.grid import PatientGrid
from engram.settings.errors import BUSY, UNUSABLE
from engram.wire.flower import FlowerGrid, HostGrid, to_flower
from engram.wire.messages import TRAIN, Error, Question
from engram.wire.wire import ARRAYS, CLIENTS, CONFIG, ROSTER_QUERY


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    time = monotonic

    def sleep(self, seconds):
        self.now += seconds


class Node:
    """Takes ``work`` seconds for a message. ``away``: from when till when it is down.

    What it was at when it went down is lost; what it had not fetched by then waits for it. What it
    says, it says in one reply after another, and then its usual answer.
    """

    def __init__(self, work=1.0, away=(), busy_until=0.0, says=()):
        self.work = work
        self.busy_until = busy_until  # with another run, of which it says so
        self.says = list(says)
        self.away = list(away)
        self.free = 0.0
        self.handled = []

    def take(self, now, message):
        """Returns when the message is answered; infinity for never."""
        start = max(now, self.free)
        start = max([start, *(end for begin, end in self.away if begin <= start < end)])
        if start > now + message.metadata.ttl:
            return np.inf
        kind = message.metadata.message_type
        self.handled.append(kind)
        work = 0.1 if kind == ROSTER_QUERY else self.work
        for begin, end in self.away:
            if start < begin < start + work:
                self.free = end
                return np.inf
        self.free = start + work
        return self.free

    def is_there(self, now):
        return not any(begin <= now < end for begin, end in self.away)

    def activated(self, now):
        return str(sum(end <= now for _, end in self.away))


class Link(Grid):
    """A SuperLink and its nodes, behind the public methods of Flower's grid."""

    run = SimpleNamespace(run_id=17)

    def __init__(self, clock, nodes):
        self.clock = clock
        self.nodes = nodes
        self.messages = {}
        self.names = itertools.count()
        HostGrid(None)  # so that this process makes messages

    def set_run(self, run):
        raise NotImplementedError

    create_message = send_and_receive = set_run

    def get_nodes(self):
        now = self.clock.now
        return [
            SimpleNamespace(node_id=number, name="", last_activated_at=node.activated(now))
            for number, node in self.nodes.items()
            if node.is_there(now)
        ]

    def get_node_ids(self):
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages):
        for message in messages:
            name = message.metadata.__dict__["_message_id"] = str(next(self.names))
            names = [CONFIG] if message.metadata.message_type == ROSTER_QUERY else [ARRAYS, CONFIG]
            assert list(message.content) == names  # sent again, too
            assert message.content[CONFIG]["training"] == TRAINING
            when = self.nodes[message.metadata.dst_node_id].take(self.clock.now, message)
            expires = self.clock.now + message.metadata.ttl
            node = message.metadata.dst_node_id
            said = ANSWER
            if self.clock.now < self.nodes[node].busy_until:
                said = Error(BUSY, "round 7 of run 5")
            elif message.metadata.message_type != ROSTER_QUERY and self.nodes[node].says:
                said = self.nodes[node].says.pop(0)
            said = MessageError(*said) if isinstance(said, tuple) else said
            reply = Message(said, reply_to=message)
            self.messages[name] = (node, when, expires, reply)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids):
        now, found = self.clock.now, []
        for name in message_ids:
            node, when, expires, reply = self.messages[name]
            if not self.nodes[node].is_there(now):
                found.append(off_line(reply))
            elif when <= min(now, expires):
                found.append(reply)
                self.messages[name] = (node, np.inf, expires, reply)
        return found


def off_line(reply):
    """What a SuperLink says in place of a reply of a node that is away."""
    found = error_instead(reply, NODE_GONE, "off line")
    found.metadata.__dict__["_src_node_id"] = 1  # a SuperLink's
    return found


def error_instead(reply, code, reason):
    """An error with the metadata of a reply."""
    return Message(metadata=copy.deepcopy(reply.metadata), error=MessageError(code, reason))


TRAINING = "0123456789abcdef"
ANSWER = to_flower({ARRAYS: {"w": torch.ones(3, dtype=torch.float64)}})
RUBBISH = Error(UNUSABLE, "its content has no header")  # what a grid says in place of a reply
CUT_OFF = Error(UNUSABLE, "3 of its 4 parts did not come")
NODE_GONE = 5  # Flower's error code for a node that is off line


def ask(clients, kind=TRAIN, several=1):
    """A question to each node, for clients of the same number."""

    def content(client):
        config = {CLIENTS: [client] * several, "training": TRAINING}
        return {ARRAYS: {"w": torch.zeros(3, 4, dtype=torch.float64)}, CONFIG: config}

    return [Question(client, kind, content(client)) for client in clients]


def patient(link, **how):
    return PatientGrid(FlowerGrid(link), **how)


def answered(replies):
    return sorted(reply.question.node for reply in replies)


def exchange(clock, nodes, *, least=1, timeout=60.0, grid=None):
    """One round with every node; returns who answered, how long it took, and the grid."""
    grid = grid or patient(Link(clock, nodes), least=least)
    start = clock.now
    replies = grid.ask(ask(grid.get_node_ids()), timeout=timeout)
    good = [reply for reply in replies if not reply.error]
    assert all(ARRAYS in reply.content for reply in good)
    return answered(good), clock.now - start, grid
