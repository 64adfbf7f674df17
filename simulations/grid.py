"""The engine of hosts in this process: their clients train together."""

from collections.abc import Iterable, Sequence
from functools import partial
from logging import getLogger

from engram.client.hosts import Exchanging, Host
from engram.client.requests import Request
from engram.server.engine import Engine
from engram.settings.errors import REFUSED, EngramError
from engram.simulations.in_process import Direct
from engram.wire.messages import EVALUATE, RAISED, TRAIN, Error, Question, Reply
from engram.wire.wire import ROSTER_QUERY, SECURE_QUERY

_log = getLogger("flwr.engram")


class InProcessGrid(Engine):
    """Asks a host of clients in this process; no Ray, no sockets, no waiting.

    All clients that are asked together train in one call of the trainer, whichever nodes they are
    on. An exception on the client side comes back as errors, as of a node.

    Args:
        host: Hosts every client.
        hosts: The clients of each node, as ranges if there are many. Node i+1 hosts ``hosts[i]``.
        direct: Trains and scores the clients of a network without questions, if given.
    """

    def __init__(
        self, host: Host, hosts: Sequence[Sequence[int]], direct: Direct | None = None
    ) -> None:
        super().__init__()
        self._host, self.still = host, direct is not None
        if direct is not None:
            self.trains = partial(direct.train, self)
            self.evaluates = partial(direct.evaluate, self)
        self._hosts = dict(enumerate(hosts, start=1))

    def get_node_ids(self) -> Iterable[int]:
        """Returns all nodes."""
        return list(self._hosts)

    def ask(self, questions: Iterable[Question], *, timeout: float) -> list[Reply]:
        """Asks, and returns the replies. Nothing is waited for."""
        del timeout
        asked = [Request(each, self._hosts.get(each.node, ())) for each in questions]
        replies = list[Reply]()
        for kind in dict.fromkeys(each.question.kind for each in asked):
            replies += self._answer(kind, [each for each in asked if each.question.kind == kind])
        return replies

    def _answer(self, kind: str, requests: Sequence[Request]) -> list[Reply]:
        host = self._host
        try:
            if kind == ROSTER_QUERY:
                return [Reply(each.question, host.describe(each.hosted)) for each in requests]
            answers = {TRAIN: host.train, EVALUATE: host.evaluate}
            if isinstance(host, Exchanging):
                answers[SECURE_QUERY] = host.exchange
            if kind in answers:
                return answers[kind](requests)
            wrong = Error(RAISED, f"no function is registered for questions of kind {kind}")
        except EngramError as error:
            wrong = Error(REFUSED, str(error))
        except Exception as error:  # the strategy decides about clients' errors
            _log.debug("the client side raised", exc_info=error)
            wrong = Error(RAISED, str(error) or repr(error))
        return [Reply(each.question, error=wrong) for each in requests]
