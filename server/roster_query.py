"""The roster query: each node's clients and source, or why it cannot serve."""

import time
from collections.abc import Mapping
from logging import getLogger
from operator import itemgetter
from pathlib import Path

from engram.server.engine import Engine
from engram.settings.errors import AWAITED, BUSY, REFUSED, UNUSABLE, few, few_names, one_line
from engram.settings.fingerprint import fingerprint, source_root
from engram.strategies.running.reply_border import Rejected, read_reply
from engram.wire.messages import Question, Reply
from engram.wire.roster import NodeEntry, read_entry
from engram.wire.wire import COLUMNS, CONFIG, ROSTER_QUERY, SETTINGS, TRAINING

_log = getLogger("flwr.engram")

_SAID = (REFUSED, UNUSABLE)  # codes of errors that our own source reports
_TOLD = 10  # most reasons that a message names
_GLANCE = 2.0  # seconds to wait for answers; later ones are found by the next call
_DATA = 600.0  # the same in a simulation, whose nodes have to load their data first
_SOON, _LATER = 5.0, 60.0  # seconds until a node that is busy, or cannot serve, is asked again


class Answers:
    """Nodes' answers to the roster query. A node that can serve is asked once, others repeatedly.

    Where the grid knows nodes by name, a node hosts the clients of its name only, whatever
    it says. ``settings`` is a digest of the run's; ``columns`` the public key for which nodes seal
    descriptions of their tables, in place of their clients' data; empty: these are not asked for.
    """

    def __init__(
        self, grid: Engine, training: str, settings: str = "", *, columns: bytes = b""
    ) -> None:
        self.entries: dict[int, NodeEntry] = {}  # of nodes that serve, as they came
        self.refusals: dict[int, str] = {}  # why others do not: the end of a sentence about them
        self._grid = grid
        self._columns = bool(columns)
        self._asked: dict[str, str | bytes]
        self._asked = {"fingerprint": fingerprint(), TRAINING: training, SETTINGS: settings}
        self._asked |= {COLUMNS: columns} if columns else {}
        self._membership = grid.membership if grid.joins else None
        self._again: dict[int, float] = {}  # when nodes that do not serve are asked again
        self._busy: set[int] = set()  # those of them that may serve later
        self._awaited: set[int] = set()  # those of them whose sites have yet to approve the run
        self._names: Mapping[int, str] = {}

    def ask(self) -> bool:
        """Asks nodes that have joined since, or are to be asked again.

        It does not wait for nodes that have to load data first: a later call finds their answers.

        Returns:
            Whether anything new is known.
        """
        now = time.monotonic()
        unknown = set(self._grid.get_node_ids()) - self.entries.keys()
        nodes = sorted(node for node in unknown if self._again.get(node, now) <= now)
        if not nodes:
            return False
        self._names = {**self._names, **self._grid.names()}
        known, alike = (len(self.entries), len(self.refusals)), dict[str, list[str]]()
        for node, reply in self._replies(nodes):
            try:
                entry = self._own(node, _read(reply))
                if (entry.table is not None) != self._columns:
                    self._again[node] = now + _SOON  # it answers another question
                    continue
                self.entries[node] = entry
                self.refusals.pop(node, None)
                self._busy.discard(node)
                self._awaited.discard(node)
            except ValueError as error:
                if self._refused(node, reason := str(error), reply):
                    alike.setdefault(reason, []).append(self.called(node))
        for reason, called in alike.items():
            _log.warning("%s %s; it is asked again", few_names(called), reason)
        return known != (len(self.entries), len(self.refusals))

    def _replies(self, nodes: list[int]) -> list[tuple[int, Reply]]:
        said = self._grid.said
        found = [(node, said.pop(node)) for node in nodes if node in said]
        others = sorted(set(nodes) - dict(found).keys())
        questions = [Question(node, ROSTER_QUERY, {CONFIG: {**self._asked}}) for node in others]
        timeout = _DATA if self._grid.fixed else _GLANCE
        replies = self._grid.ask(questions, timeout=timeout) if questions else []
        return found + sorted(((r.question.node, r) for r in replies), key=itemgetter(0))

    def _refused(self, node: int, reason: str, reply: Reply) -> bool:
        """Notes why a node does not serve; returns whether that is new."""
        awaited = reply.has_code(AWAITED)
        busy = awaited or reply.has_code(BUSY)
        self._again[node] = time.monotonic() + (_SOON if busy else _LATER)
        (self._busy.add if busy else self._busy.discard)(node)
        (self._awaited.add if awaited else self._awaited.discard)(node)
        before, self.refusals[node] = self.refusals.get(node), reason
        return before != reason

    def _own(self, node: int, entry: NodeEntry) -> NodeEntry:
        """Removes clients from an entry that do not belong to the node by its name."""
        membership, name = self._membership, self._names.get(node, "")
        if membership is None or membership.number(name) is None:
            return entry

        def is_own(client: int) -> bool:
            return membership.is_named(name, client)

        own = {c: n for c, n in entry.clients.items() if is_own(c)}
        left_out = {c: why for c, why in entry.left_out.items() if is_own(c)}
        others = sorted({*entry.clients, *entry.left_out} - {*own, *left_out})
        if others:
            _log.warning(
                "%s says that it hosts clients %s, which belong to other nodes: they are ignored "
                "(federation.toml has %d clients, and its node.toml must have as many)",
                self.called(node),
                few(others),
                membership.clients,
            )
        unscored = {c: why for c, why in entry.unscored.items() if c in own}
        return entry._replace(clients=own, left_out=left_out, unscored=unscored)

    def forget(self, node: int) -> None:
        """Forgets the answer of a node."""
        self.entries.pop(node, None)

    def called(self, node: int) -> str:
        """Returns a node's name for messages."""
        name = self._names.get(node)
        return f"{one_line(name)} (node {node})" if name else f"node {node}"

    def refusal(self, client: int) -> str | None:
        """Returns why the node registered for a client does not serve; None if it does."""
        if self._membership is None:
            return None
        for node in [*self.refusals, *self.silent]:
            if self._membership.is_named(self._names.get(node, ""), client):
                return f"its node {self.at_work(node)}"
        return None

    def at_work(self, node: int) -> str:
        """Returns why an online node is not asked: the end of a sentence about it."""
        return self._grid.excuse(node) or self.refusals.get(node, "has not answered")

    @property
    def awaits_approval(self) -> bool:
        """Whether the site of an online node has yet to approve the run."""
        return bool(self._awaited & self._grid.on_line())

    @property
    def silent(self) -> set[int]:
        """Online nodes that have not answered yet."""
        return self._grid.on_line() - self.entries.keys() - self.refusals.keys()

    @property
    def complete(self) -> bool:
        """Whether no other node can join: in a simulation, or once all registered nodes have."""
        if not self._grid.joins:
            return not self.silent
        if self._membership is None:
            return False
        heard = self.entries.keys() | (self.refusals.keys() - self._busy)
        there = {self._membership.number(self._names.get(node, "")) for node in heard}
        return there.issuperset(self._membership.members()) and not self.silent

    @property
    def unanimous(self) -> int:
        """Number of nodes that refuse, where all that have answered do for the same reason."""
        said = [why for node, why in self.refusals.items() if node not in self._busy]
        return len(said) if not self.entries and len({*said}) == 1 else 0

    def in_words(self) -> str:
        """Describes the nodes that do not serve, without those that ``refusal`` does."""
        if self._membership is not None:
            return self._membership.known(self._grid.on_line())
        alike = dict[str, list[str]]()
        for node in [*self.refusals, *sorted(self.silent)]:
            alike.setdefault(self.at_work(node), []).append(self.called(node))
        told = [f"{few_names(called)} {why}" for why, called in alike.items()]
        return "; ".join(told[:_TOLD])


def _read(reply: Reply) -> NodeEntry:
    """Returns a node's entry; a ``ValueError`` ends a sentence on why the node cannot serve."""
    ours = f"this coordinator runs {fingerprint()} from {source_root()}"
    if reply.error:
        reason = one_line(_last_line(reply.error.reason or ""))
        if reply.has_code(BUSY):
            raise ValueError(f"is busy: {reason}")
        if reply.has_code(AWAITED):
            raise ValueError(reason)
        if reply.error.code in _SAID:  # from our own source, so the reason explains itself
            raise ValueError(f"cannot serve this run: {reason}")
        raise ValueError(f"cannot serve this run: {reason}{_decoy()}; {ours}")
    entry = read_reply(reply, read_entry)
    if isinstance(entry, Rejected):
        told = f"no roster entry: {entry.reason}"
        raise ValueError(f"runs something else ({told}){_decoy()}; {ours}")
    if entry.fingerprint != fingerprint():
        theirs = one_line(f"{entry.fingerprint} from {entry.source}")
        raise ValueError(f"runs {theirs}; {ours}")
    return entry


def _decoy() -> str:
    """Points at a folder that a Ray worker would import instead of our package."""
    here = Path.cwd()
    if here == source_root() or not (decoy := here / "engram").is_dir():
        return ""
    return f" (a worker started in {here} imports {decoy} first)"


def _last_line(reason: str) -> str:
    lines = [line.strip() for line in reason.splitlines() if line.strip(" '>\t")]
    return lines[-1] if lines else "no reason given"
