"""The engine of real nodes: sends lost questions again, and waits for no dead node."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING

from engram.core.machine import let_go
from engram.link.backoff import Pauses
from engram.link.server.suspensions import Suspensions
from engram.runs.progress import RunProgress
from engram.runs.run import PROGRESS
from engram.server.engine import Engine
from engram.server.pending_messages import Asked, Exchange, trained_for
from engram.settings.errors import AWAITED, BUSY, UNUSABLE, few, one_line
from engram.settings.experiment import Experiment
from engram.wire.messages import TRAIN, Question, Reply
from engram.wire.wire import COLUMNS, CONFIG, ROSTER_QUERY, TRAINING, size_of

if TYPE_CHECKING:
    from engram.link.server.membership import Membership
    from engram.server.link_grid import LinkGrid
    from engram.wire.flower import FlowerGrid

_log = getLogger("flwr.engram")

_EAGER, _IDLE = 0.03, 0.5  # shortest and longest seconds between polls for replies
_LOOK = 1.0  # seconds between polls of which nodes are online
_SOON = 5.0  # seconds until a node that is busy is asked again
_SILENT, _SLOW = 4.0, 60.0  # seconds until it is said which nodes are waited for: gone, at work


class PatientGrid(Engine):
    """Asks nodes again that restarted, and leaves out nodes that stay away.

    A node that was activated again has lost its question, so it is sent again; a node that handles
    a question twice gives the same reply twice. (A grid that sends it again itself always reports
    the same activation.) A question lives as long as its round: later it is neither delivered nor
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
        self, grid: "FlowerGrid | LinkGrid", *, least: int, membership: "Membership | None" = None
    ) -> None:
        super().__init__()
        self._grid = grid
        self._wait = getattr(grid, "await_reply", time.sleep)  # at most so many seconds
        self.membership = membership
        self.fixed = grid.fixed
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
        self._absent: dict[int, Asked] = {}  # nodes that missed a round, and their roster queries
        self.enough = 0
        self._aloft: dict[Question, Asked] = {}  # questions to train that later rounds wait for
        self._expire: dict[int, float] = {}  # when these are given up, by node
        self._again: dict[int, float] = {}  # when busy ones among them are asked again
        self._undecided: set[int] = set()  # busy ones whose sites have yet to approve the round
        self.last = Exchange(0.0, {}, {}, 0, 0)
        self._spent: Counter[str] = Counter()  # of a round's exchanges: see ``Exchange.costs``

    @property
    def stopping(self) -> bool:
        """Whether `engram stop` has asked for an end of the run after its current round."""
        return self.membership is not None and self.membership.is_stopping(self._grid.run_id)

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

    def names(self) -> dict[int, str]:
        """Returns the names of online nodes that are registered by name; none chooses its own."""
        return {node.node_id: node.name for node in self._grid.get_nodes() if node.name}

    def get_node_ids(self) -> Iterable[int]:
        """Returns the nodes that are online and free for this run."""
        present = [*self._look()]
        out = self.suspensions.current()
        missed = {n: self._absent[n] for n in present if n in self._absent and n not in out}
        silent = {asked.question: asked for n, asked in missed.items() if n not in self._again}
        for reply in self._grid.pull(silent):
            asked, node = silent[reply.question], reply.question.node
            del missed[node]
            if reply.has_code(BUSY):
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

    def _note_busy(self, node: int, reply: Reply) -> None:
        reason = one_line(reply.error.reason) if reply.error else ""
        if node not in self.busy:
            _log.warning("node %d is busy: %s", node, reason)
        self.busy[node] = reason
        (self._undecided.add if reply.has_code(AWAITED) else self._undecided.discard)(node)
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
                query = asked.question.kind == ROSTER_QUERY
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

    def ask(self, questions: Iterable[Question], *, timeout: float) -> list[Reply]:
        """Asks nodes, and returns the replies in the order in which they came.

        Returns when all replies have come, or those of ``enough`` clients; when those of ``least``
        clients have and the other nodes are offline, or their sites have yet to approve; or when
        ``timeout`` seconds have passed. A node that is busy, or not approved, is asked again until
        then.
        """
        start, self._sent = time.monotonic(), 0
        end = start + timeout
        asked_for, kind = self._opened_by(questions)
        # A roster query outlives its exchange: a node may have to load data first.
        lives, told = (math.inf, None) if kind == ROSTER_QUERY else (end, set[int]())
        enough = self.enough if self.enough and kind == TRAIN else math.inf
        waiting = self._send(asked_for, lives) | self._joining(asked_for, end, enough)
        wanted = min(self._least, sum(asked.clients for asked in waiting.values()))
        let_go(self._sent)
        found, busy, usable = list[Reply](), list[Asked](), Counter[int]()  # clients, by node
        received, latencies, training = 0, dict[int, float](), dict[int, float]()
        pauses = self._pauses.setdefault(kind, Pauses(_EAGER, _IDLE))
        pauses.begin()
        while (waiting or busy) and time.monotonic() < end:
            self._wait(min(pauses.next(), max(0.0, end - time.monotonic())))
            for reply in self._grid.pull(waiting):
                asked, node = waiting.pop(reply.question), reply.question.node
                received += self._weigh(reply, node)
                if kind != ROSTER_QUERY and reply.has_code(BUSY, AWAITED):  # there, answers
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
        found = [reply for reply in found if reply.question.node not in barred]
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

    def _joining(self, asked: list[Asked], end: float, enough: float) -> dict[Question, Asked]:
        """Returns questions of former rounds that a round waits for; notes when its own expire."""
        if enough == math.inf:
            return {}
        self._expire |= {each.node: end for each in asked}
        return self._aloft

    def _set_aside(self, waiting: dict[Question, Asked], enough: float) -> dict[Question, Asked]:
        """Keeps questions that later rounds wait for; returns those given up."""
        if enough == math.inf:
            return waiting
        now, barred = time.monotonic(), self._barred()
        late = {
            question: asked
            for question, asked in waiting.items()
            if asked.node in barred or self._is_off_line(asked) or self._expire[asked.node] <= now
        }
        self._aloft = {each: asked for each, asked in waiting.items() if each not in late}
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
                ids = sorted(c for node in nodes for c in self._hosted.get(node, ()))
                _log.warning("waiting for clients %s: %s", few(ids) if ids else "of a node", why)

    def _opened_by(self, questions: Iterable[Question]) -> tuple[list[Asked], str]:
        let_go(self.last.sent + self.last.received)  # the last model, before the next is copied
        asked = [Asked.by(question) for question in questions]
        self._hosted |= {each.node: each.named for each in asked if each.named}
        kind = asked[0].question.kind if asked else ""
        self.progress.begin(kind, {each.node: self._hosted.get(each.node, []) for each in asked})
        return asked, kind

    def _weigh(self, reply: Reply, node: int) -> int:
        size = size_of(reply.content)
        self.progress.received(node, size)
        return size

    def _look(self) -> Mapping[int, str]:
        if time.monotonic() - self._looked > _LOOK:
            nodes = self._grid.get_nodes()
            self._activated = {node.node_id: node.last_activated_at for node in nodes}
            self._looked = time.monotonic()
        return self._activated

    def _send(self, asked: list[Asked], end: float) -> dict[Question, Asked]:
        for each in asked:
            size = size_of(each.question.content)
            self._sent += size
            self.progress.sent(each.node, size)
        # Before they are sent: a node that is activated meanwhile is asked again, and none missed.
        present = self._look()
        self._grid.push([each.question for each in asked], seconds=end - time.monotonic())
        return {e.question: e._replace(activated=present.get(e.node, "")) for e in asked}

    def _send_again(self, waiting: dict[Question, Asked], end: float) -> dict[Question, Asked]:
        self._look()
        barred = self._barred()
        waiting = {each: asked for each, asked in waiting.items() if asked.node not in barred}
        lost = [each for each, asked in waiting.items() if self._is_lost(asked)]
        return waiting | self._send([waiting.pop(each) for each in lost], end)

    def _barred(self) -> set[int]:
        return self.membership.barred() if self.membership else set()

    def _question(self, missed: Asked) -> Asked:
        config = {TRAINING: missed.training} | ({COLUMNS: True} if missed.columns else {})
        question = Question(missed.node, ROSTER_QUERY, {CONFIG: config})
        (asked,) = self._send([missed._replace(question=question)], math.inf).values()
        return asked

    def _is_usable(self, reply: Reply, asked: Asked) -> bool:
        """Whether a reply can be read; if not, its node has to answer a roster query first."""
        node = asked.node
        if reply.error is None or reply.error.code != UNUSABLE:
            self.suspensions.note_good(node)
            return True
        self._absent[node] = self._question(asked)
        reason = one_line(reply.error.reason or "no reason given")
        self.suspensions.note_fault(node, self._hosted.get(node, []), reason)
        return False

    def _is_lost(self, asked: Asked) -> bool:
        """Whether an online node never got a message, or lost it."""
        at = self._activated.get(asked.node)
        return at is not None and (at != asked.activated or asked.question.name in self._grid.lost)

    def _is_off_line(self, asked: Asked) -> bool:
        return asked.node not in self._activated
