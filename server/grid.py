"""A Grid for real nodes, on top of Flower's: resends lost messages, and waits for no dead node."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from engram.core.machine import let_go
from engram.link.backoff import Pauses
from engram.link.server.suspensions import Suspensions
from engram.runs.progress import RunProgress
from engram.runs.run import PROGRESS
from engram.server.engine import Engine
from engram.server.pending_messages import Asked, Exchange, has_code, trained_for
from engram.settings.errors import AWAITED, BUSY, UNUSABLE, few, one_line
from engram.settings.experiment import Experiment
from engram.wire.messages import GONE, SUPERLINK, is_simulated
from engram.wire.wire import COLUMNS, CONFIG, ROSTER_QUERY, TRAINING, size_of

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from engram.link.server.membership import Membership
    from engram.server.link_grid import LinkGrid

_log = getLogger("flwr.engram")

_EAGER, _IDLE = 0.03, 0.5  # shortest and longest seconds between polls for replies
_LOOK = 1.0  # seconds between polls of which nodes are online
_SOON = 5.0  # seconds until a node that is busy is asked again
_SILENT, _SLOW = 4.0, 60.0  # seconds until it is said which nodes are waited for: gone, at work


class PatientGrid(Engine):
    """Resends messages to nodes that restarted, and leaves out nodes that stay away.

    A node that was activated again has lost its message, so it is sent again; a node that handles
    a message twice gives the same reply twice. (A grid that sends it again itself always reports
    the same activation.) A message lives as long as its round: later it is neither delivered nor
    is its reply read. A node that missed a round, or whose reply is unusable, is not in
    ``get_node_ids`` until it has answered a roster query, so that it cannot delay further rounds;
    nor are nodes that ``Suspensions`` leaves out. Replies of nodes that ``membership`` bars are
    dropped, and not waited for.

    ``least`` is the number of clients whose replies are enough if all missing nodes are offline.

    Attributes:
        enough: Clients whose usable replies end a round of training, while the others go on: their
            replies count in later rounds, until ``timeout`` has passed since they were asked, or
            they are off line. 0: rounds wait for all.
    """

    def __init__(
        self, grid: "Grid | LinkGrid", *, least: int, membership: "Membership | None" = None
    ) -> None:
        super().__init__(grid.run)
        self._grid = grid
        self._wait = getattr(grid, "await_reply", time.sleep)  # at most so many seconds
        self.membership = membership
        self.fixed = is_simulated(grid)
        self.joins = not self.fixed
        self.busy: dict[int, str] = {}  # what busy nodes say that they are doing
        self._least = least
        self._activated: Mapping[int, str] = {}
        self._looked = -math.inf
        self._sent = 0
        self._pauses: dict[str, Pauses] = {}  # until the first reply, by kind of message
        self.suspensions = Suspensions()
        self.progress = RunProgress()  # one that keeps a file, once a run begins
        self._hosted: dict[int, list[int]] = {}  # each node's clients in its last message
        self._gone: set[str] = set()  # messages that the grid reports as deleted
        self._absent: dict[int, Asked] = {}  # nodes that missed a round, and their roster queries
        self.enough = 0
        self._aloft: dict[str, Asked] = {}  # messages to train that later rounds wait for
        self._expire: dict[int, float] = {}  # when these are given up, by node
        self._again: dict[int, float] = {}  # when busy ones among them are asked again
        self._undecided: set[int] = set()  # busy ones whose sites have yet to approve the round
        self.last = Exchange(0.0, {}, {}, 0, 0)
        self._spent: Counter[str] = Counter()  # of a round's exchanges: see ``Exchange.costs``

    @property
    def stopping(self) -> bool:
        """Whether `engram stop` has asked for an end of the run after its current round."""
        return self.membership is not None and self.membership.is_stopping(self.run.run_id)

    def begin(self, experiment: Experiment, folder: Path) -> None:
        """Begins a run in a folder, where its progress is kept."""
        super().begin(experiment, folder)
        self.progress = RunProgress(folder / PROGRESS)
        self.enough = 0 if self.fixed else experiment.buffer_size

    def stage(self, server_round: int, *, training: bool) -> None:
        """Begins a round, or its evaluation, of which no costs are recorded."""
        del server_round
        if training:
            self._spent = Counter(dict.fromkeys(self._spent, 0))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Sends messages; returns their ids."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Returns the replies that have come."""
        return self._grid.pull_messages(message_ids)

    def get_nodes(self) -> Iterable[Any]:
        """Returns the grid's records of all online nodes, busy or not."""
        return self._grid.get_nodes()

    def get_node_ids(self) -> Iterable[int]:
        """Returns the nodes that are online and free for this run."""
        present = [*self._look()]
        out = self.suspensions.current()
        missed = {n: self._absent[n] for n in present if n in self._absent and n not in out}
        silent = {asked.id: asked for n, asked in missed.items() if n not in self._again}
        for reply in self._arrived(silent):
            asked = silent[reply.metadata.reply_to_message_id]
            node = asked.node
            del missed[node]
            if has_code(reply, BUSY):
                self._note_busy(node, reply)
            elif self._is_usable(reply, asked):
                self.said[node] = reply
                del self._absent[node]
                self.busy.pop(node, None)
        for node, asked in missed.items():
            if self._is_lost(asked) or self._again.get(node, math.inf) <= time.monotonic():
                self._again.pop(node, None)
                self._absent[node] = self._question(asked)
        return [node for node in present if node not in self._absent]

    def _note_busy(self, node: int, reply: Message) -> None:
        reason = one_line(reply.error.reason or "")
        if node not in self.busy:
            _log.warning("node %d is busy: %s", node, reason)
        self.busy[node] = reason
        (self._undecided.add if has_code(reply, AWAITED) else self._undecided.discard)(node)
        self._again[node] = time.monotonic() + _SOON

    def _due(self, busy: list[Asked]) -> list[Asked]:
        now = time.monotonic()
        due = [asked for asked in busy if self._again[asked.node] <= now]
        busy[:] = [asked for asked in busy if self._again[asked.node] > now]
        return due

    def _note_missing(self, waiting: Iterable[Asked], busy: Iterable[Asked]) -> set[int]:
        barred = self._barred()
        for asked in waiting:
            if asked.node not in barred:  # a roster query is still answered
                query = asked.message.metadata.message_type == ROSTER_QUERY
                self._absent[asked.node] = asked if query else self._question(asked)
        self._absent |= {asked.node: asked for asked in busy}  # asked again when due
        return barred

    def on_line(self) -> set[int]:
        """Returns all online nodes, busy or not."""
        return set(self._look())

    def excuse(self, node: int) -> str:
        """Returns why a node is suspended or busy."""
        if suspended := self.suspensions.current().get(node):
            return f"is left out: {suspended['reason']}"
        return f"is busy: {self.busy[node]}" if node in self.busy else ""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Sends messages and returns the replies, in the order in which they came.

        Returns when all replies have come, or those of ``enough`` clients; when those of ``least``
        clients have and the other nodes are offline, or their sites have yet to approve; or when
        ``timeout`` seconds have passed. A node that is busy, or not approved, is asked again until
        then.
        """
        start, self._sent = time.monotonic(), 0
        end = start + (timeout if timeout is not None else math.inf)
        asked_for, kind = self._opened_by(messages)
        # A roster query outlives its exchange: a node may have to load data first.
        lives, told = (math.inf, None) if kind == ROSTER_QUERY else (end, set[int]())
        enough = self.enough if self.enough and kind == MessageType.TRAIN else math.inf
        waiting = self._send(asked_for, lives) | self._joining(asked_for, end, enough)
        wanted = min(self._least, sum(asked.clients for asked in waiting.values()))
        let_go(self._sent)
        found, busy, usable = list[Message](), list[Asked](), Counter[int]()  # clients, by node
        received, latencies, training = 0, dict[int, float](), dict[int, float]()
        pauses = self._pauses.setdefault(kind, Pauses(_EAGER, _IDLE))
        pauses.begin()
        while (waiting or busy) and time.monotonic() < end:
            self._wait(min(pauses.next(), max(0.0, end - time.monotonic())))
            for reply in self._arrived(waiting):
                asked = waiting.pop(reply.metadata.reply_to_message_id)
                node = asked.node
                received += self._weigh(reply, node)
                if kind != ROSTER_QUERY and has_code(reply, BUSY, AWAITED):  # there, answers
                    self._note_busy(node, reply)
                    busy.append(asked)
                    continue
                found.append(reply)
                if not self._is_usable(reply, asked):
                    continue
                self.busy.pop(node, None)
                usable[node] += asked.clients
                latencies[node] = time.monotonic() - start
                training[node] = trained_for(reply, latencies[node])
                self.progress.answered(node, latencies[node], training[node])
                if len(latencies) == 1:
                    pauses.found()
            if due := self._due(busy):
                waiting |= self._send(due, end)
            others = [*waiting.values(), *(b for b in busy if b.node not in self._undecided)]
            gone = all(map(self._is_off_line, others))  # or there are none
            if self._suffice(usable, min(wanted, enough) if gone else enough):
                break
            if time.monotonic() - self._looked > _LOOK:
                waiting = self._send_again(waiting, lives)
                self._tell(waiting.values(), time.monotonic() - start, told)
        waiting = self._set_aside(waiting, enough)
        self.progress.end(late.node for late in [*waiting.values(), *busy])
        barred = self._note_missing(waiting.values(), busy)
        found = [reply for reply in found if reply.metadata.src_node_id not in barred]
        self._gone &= self._aloft.keys()
        self.last = Exchange(time.monotonic() - start, latencies, training, self._sent, received)
        self._spent.update(self.last.costs())
        who = {str(node): told for node, told in self.suspensions.current().items()}
        self.costs = {**self._spent, **({"suspended": who} if who else {})}
        return found

    def _suffice(self, usable: Counter[int], least: float) -> bool:
        """Whether there are so many clients' replies, without those of nodes that were barred."""
        if usable.total() >= least:
            for node in self._barred() & usable.keys():
                del usable[node]
        return usable.total() >= least

    def _joining(self, asked: list[Asked], end: float, enough: float) -> dict[str, Asked]:
        """Returns messages of former rounds that a round waits for; notes when its own expire."""
        if enough == math.inf:
            return {}
        self._expire |= {each.node: end for each in asked}
        return self._aloft

    def _set_aside(self, waiting: dict[str, Asked], enough: float) -> dict[str, Asked]:
        """Keeps messages that later rounds wait for; returns those given up."""
        if enough == math.inf:
            return waiting
        now, barred = time.monotonic(), self._barred()
        late = {
            name: asked
            for name, asked in waiting.items()
            if asked.node in barred or self._is_off_line(asked) or self._expire[asked.node] <= now
        }
        self._aloft = {name: asked for name, asked in waiting.items() if name not in late}
        self.at_work = frozenset(asked.node for asked in self._aloft.values())
        return late

    def _tell(self, waiting: Iterable[Asked], seconds: float, told: set[int] | None) -> None:
        """Logs the nodes that are waited for, once each, if they are off line or take long.

        ``told`` has the nodes that were logged already; None to log none.
        """
        if told is None:
            return
        gone = {asked.node for asked in waiting if self._is_off_line(asked)} - told
        slow = {asked.node for asked in waiting} - gone - told
        groups = (gone, _SILENT, "their node is off line"), (slow, _SLOW, "at work")
        for nodes, after, why in groups:
            if nodes and seconds > after:
                told |= nodes
                clients = sorted(c for node in nodes for c in self._hosted.get(node, ()))
                _log.warning("waiting for clients %s: %s", few(clients), why)

    def _opened_by(self, messages: Iterable[Message]) -> tuple[list[Asked], str]:
        let_go(self.last.sent + self.last.received)  # the last model, before the next is copied
        asked = [Asked.by(message) for message in messages]
        self._hosted |= {each.node: each.named for each in asked if each.named}
        kind = asked[0].message.metadata.message_type if asked else ""
        self.progress.begin(kind, {each.node: self._hosted.get(each.node, []) for each in asked})
        return asked, kind

    def _weigh(self, reply: Message, node: int) -> int:
        size = size_of(reply.content) if reply.has_content() else 0
        self.progress.received(node, size)
        return size

    def _look(self) -> Mapping[int, str]:
        if time.monotonic() - self._looked > _LOOK:
            nodes = self._grid.get_nodes()
            self._activated = {node.node_id: node.last_activated_at for node in nodes}
            self._looked = time.monotonic()
        return self._activated

    def _send(self, asked: list[Asked], end: float) -> dict[str, Asked]:
        left = end - time.monotonic()
        for message, *_ in asked:
            if left < math.inf:
                message.metadata.ttl = max(left, 1.0)
            message.metadata.created_at = time.time()  # a message sent again needs a new id
            size = size_of(message.content)
            self._sent += size
            self.progress.sent(message.metadata.dst_node_id, size)
        # Before they are sent: a node that is activated meanwhile is asked again, and none missed.
        present = self._look()
        self._grid.push_messages([item.message for item in asked])
        return {item.id: item._replace(activated=present.get(item.node, "")) for item in asked}

    def _send_again(self, waiting: dict[str, Asked], end: float) -> dict[str, Asked]:
        self._look()
        barred = self._barred()
        waiting = {name: asked for name, asked in waiting.items() if asked.node not in barred}
        lost = [name for name, asked in waiting.items() if self._is_lost(asked)]
        return waiting | self._send([waiting.pop(name) for name in lost], end)

    def _barred(self) -> set[int]:
        return self.membership.barred() if self.membership else set()

    def _question(self, missed: Asked) -> Asked:
        config: dict[str, str | bool] = {TRAINING: missed.training}
        config |= {COLUMNS: True} if missed.columns else {}
        content = RecordDict({CONFIG: ConfigRecord({**config})})
        message = Message(content, dst_node_id=missed.node, message_type=ROSTER_QUERY)
        (asked,) = self._send([missed._replace(message=message)], math.inf).values()
        return asked

    def _arrived(self, asked: Mapping[str, Asked]) -> list[Message]:
        """Returns the replies that have come, except errors that say that a node is away."""
        found = []
        for reply in self._grid.pull_messages([*asked]) if asked else ():
            name = reply.metadata.reply_to_message_id
            if name in asked and _was_away(reply):
                self._gone.add(name)
            elif name in asked:
                found.append(reply)
        return found

    def _is_usable(self, reply: Message, asked: Asked) -> bool:
        """Whether a reply can be read; if not, its node has to answer a roster query first."""
        node = asked.node
        if not has_code(reply, UNUSABLE):
            self.suspensions.note_good(node)
            return True
        self._absent[node] = self._question(asked)
        reason = one_line(reply.error.reason or "no reason given")
        self.suspensions.note_fault(node, self._hosted.get(node, []), reason)
        return False

    def _is_lost(self, asked: Asked) -> bool:
        """Whether an online node never got a message, or lost it."""
        at = self._activated.get(asked.node)
        return at is not None and (at != asked.activated or asked.id in self._gone)

    def _is_off_line(self, asked: Asked) -> bool:
        return asked.node not in self._activated


def _was_away(reply: Message) -> bool:
    """Whether a reply is an error because its node went away: its message is sent again."""
    # A node's own claim does not count: it could have the message resent for ever.
    return has_code(reply, *GONE) and reply.metadata.src_node_id == SUPERLINK
