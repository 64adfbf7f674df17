"""An in-process Grid: any Flower strategy runs on it unchanged, and clients train together."""

import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from logging import getLogger

from flwr.app import Error, Message, MessageType

from engram.client.hosts import Exchanging, Host
from engram.client.requests import Request
from engram.server.engine import Engine
from engram.settings.errors import REFUSED, EngramError
from engram.simulations.in_process import Direct
from engram.wire.messages import RAISED, local_run, name_message
from engram.wire.wire import ROSTER_QUERY, SECURE_QUERY

_log = getLogger("flwr.engram")


class InProcessGrid(Engine):
    """Delivers messages to a host of clients in this process; no Ray, no sockets, no waiting.

    All clients that are addressed together train in one call of the trainer, whichever nodes
    they are on. An exception on the client side comes back as error replies, as with Flower.

    Args:
        host: Hosts every client.
        hosts: The clients of each node, as ranges if there are many. Node i+1 hosts ``hosts[i]``.
            Flower's own strategies, which sample nodes, expect one client per node.
        direct: Trains and scores the clients of a network without messages, if given.
    """

    def __init__(
        self, host: Host, hosts: Sequence[Sequence[int]], direct: Direct | None = None
    ) -> None:
        super().__init__(local_run())
        self._host, self.still = host, direct is not None
        if direct is not None:
            self.trains = partial(direct.train, self)
            self.evaluates = partial(direct.evaluate, self)
        self._hosts = dict(enumerate(hosts, start=1))
        self._names = itertools.count(1)
        self._replies: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        """Returns all nodes."""
        return list(self._hosts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Delivers messages and keeps the replies; returns the messages' ids."""
        messages = list(messages)
        for message in messages:
            name_message(message, str(next(self._names)))
        for kind in dict.fromkeys(message.metadata.message_type for message in messages):
            requests = [
                Request(message, self._hosts.get(message.metadata.dst_node_id, ()))
                for message in messages
                if message.metadata.message_type == kind
            ]
            for request, reply in zip(requests, self._answer(kind, requests), strict=True):
                name_message(reply, str(next(self._names)))
                self._replies[request.message.metadata.message_id] = reply
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Returns the replies to these messages, once."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Delivers messages and returns the replies. Nothing is waited for."""
        del timeout
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, kind: str, requests: Sequence[Request]) -> list[Message]:
        host = self._host
        try:
            if kind == ROSTER_QUERY:
                return [Message(host.describe(r.hosted), reply_to=r.message) for r in requests]
            answers = {MessageType.TRAIN: host.train, MessageType.EVALUATE: host.evaluate}
            if isinstance(host, Exchanging):
                answers[SECURE_QUERY] = host.exchange
            if kind in answers:
                return answers[kind](requests)
            reason = f"no function is registered for messages of type {kind}"
            wrong = Error(RAISED, reason)
        except EngramError as error:
            wrong = Error(REFUSED, str(error))
        except Exception as error:  # the strategy decides about clients' errors
            _log.debug("the client side raised", exc_info=error)
            wrong = Error(RAISED, str(error) or repr(error))
        return [Message(wrong, reply_to=r.message) for r in requests]
