"""Attendance: which node hosts which client, from before the first round until after the last."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from functools import partial
from logging import getLogger

from engram.core.checks import must
from engram.core.standardization import Tokenizer, Units
from engram.data.clients import checked_names
from engram.data.schema.columns import Kind
from engram.data.texts import tokenizer_for
from engram.server.engine import Engine
from engram.server.roster_query import Answers
from engram.settings.errors import Names, Refused, RunStopped, few
from engram.settings.experiment import Experiment
from engram.sites.client_claims import (
    claims,
    fitted,
    possible_for,
    reasons,
    seated,
    short_of_rows,
    usual_kind,
)
from engram.wire.roster import Roster

_log = getLogger("flwr.engram")

_SILENT = 3.0  # seconds of a wait until it is said whom it is for
_DECISION = 7 * 86400.0  # seconds that sites have to approve a run


class Waiting:
    """A wait for clients: logs whom it is for, once it lasts, and again when that changes."""

    def __init__(self) -> None:
        self._due = time.monotonic() + _SILENT
        self._told = ""

    def tell(self, whom: Callable[[], str]) -> None:
        """Logs the clients that are waited for, and why, if it is time to."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _SILENT
        if (found := whom()) and found != self._told:
            self._told = found
            _log.warning("waiting for %s", found)


class Attendance:
    """The clients that have joined, and the nodes that host them.

    Of two nodes that claim a client, the first keeps it until it goes offline; the other's claim is
    ignored with a warning. So are nodes with data of another kind.

    Args:
        grid: The nodes.
        num_clients: Number of clients in the run; those that come later have numbers from there on.
        training: As of ``Answers``, like ``settings``.
        kind: Kind of the run's data, if known from before. None: the kind that most nodes have; if
            tied, that of the node with the lowest client. Its units are then fitted on what nodes
            tell that have joined when the run begins.
        patience: Seconds without news after which the run begins with the clients that have joined.
        usable: Whether the run can be of a kind of data, asked where nodes' kinds differ: what a
            node claims to have may be impossible.
        roll: Returns who is a member of the federation now, and so counted on; None if all of
            ``num_clients`` are, from beginning to end.
        tokenizer: Returns the tokenizer of texts by the words that nodes tell; None of other data.
    """

    def __init__(
        self,
        grid: Engine,
        num_clients: int,
        *,
        training: str = "",
        settings: str = "",
        kind: Kind | None = None,
        patience: float = 60,
        usable: Callable[[Kind], bool] = lambda kind: True,
        roll: Callable[[], Set[int]] | None = None,
        tokenizer: Callable[[Iterable[Mapping[str, int]]], Tokenizer] | None = None,
    ) -> None:
        self._grid = grid
        self._usable = usable
        self._patience = patience
        self._roll = roll
        self._tokenizer = tokenizer
        self.clients = num_clients  # that the run has had until the last look
        self.members: Set[int] | None = None  # those counted on at that look; None: all, always
        self._call()
        self._answers = Answers(grid, training, settings)
        self._given = kind and kind._replace(units=Units())
        self._kind = self._given or Kind()
        self._units = kind and kind.units
        self._hosts: dict[int, int] = {}
        self._nodes: frozenset[int] = frozenset()  # those that host a client
        self._rivals: list[int] = []  # nodes that claim clients of other nodes
        self._left_out: dict[int, str] = {}  # clients that have too few rows, and why
        self.away: dict[int, str] = {}  # clients that could not be asked at that look, and why
        self._everyone = grid.fixed  # whether all clients with enough rows are needed
        self._settled: set[int] = set()  # nodes whose ignored claims were warned of

    def wait(self, least: int, *, everyone: bool = False, timeout: float = 600) -> None:
        """Waits until all clients have joined, or enough of them and no others for a while.

        While there are not enough, it waits for sites that have yet to approve the run.

        Args:
            least: Minimum number of clients. A simulation needs all that have enough rows, since
                its nodes do not join later.
            everyone: Whether all that have enough rows are needed here, too.
            timeout: Seconds that nodes have to answer as long as fewer clients have joined; they
                may have to load data first.

        Raises:
            RunStopped: If fewer join; it says what is known of the others.
        """
        self._everyone = everyone or self._grid.fixed
        now = time.monotonic()
        deadline, end, waiting = now + self._patience, now + timeout, Waiting()
        while not self._known(least):
            late = time.monotonic() > deadline  # read before asking nodes that have joined
            if self._answers.ask() | self._call():
                entries = self._answers.entries
                self._kind = self._given or usual_kind(entries, self._everybody, self._usable)
                self._seat({}, entries)
                deadline = time.monotonic() + self._patience
                continue
            enough = len(self._hosts) >= self._needed(least)
            undecided = self._answers.awaits_approval and time.monotonic() < now + _DECISION
            late = late and (enough or not undecided)
            at_once = self._answers.complete or self._is_hopeless(least)
            if at_once or (late and self._is_over(end, enough=enough)):
                break
            if self._grid.stopping:
                raise RunStopped("ended before its first round, as `engram stop` asked for")
            waiting.tell(self.whom)
            time.sleep(0.1)
        if len(self._hosts) < (needed := self._needed(least)):
            raise RunStopped(self.too_few(needed))
        self._settle()
        if self._units is None:
            entries, called = self._answers.entries, self._answers.called
            self._units = fitted(entries, self._nodes, self._everybody, called)
            if self._tokenizer is not None:
                words = (entries[node].told.words or {} for node in self._nodes)
                self._units = self._units._replace(text=self._tokenizer(words))
        if self._grid.fixed or self._grid.joins:  # else all of them are in this process
            here = len(self._hosts), len(self._nodes)
            _log.info("roster: %d clients on %d nodes, all running this source", *here)
        self.away = self.absent()
        if self.away:
            later = "" if self._left_out.keys() == self.away.keys() else ", for now"
            reasons = self._reasons(self.away)
            _log.warning("the run goes on without some clients%s: %s", later, reasons)
        if unscored := self.roster().unscored:
            _log.warning("some clients train and are not scored: %s", self._reasons(unscored))

    def _known(self, least: int) -> bool:
        """Whether all clients are accounted for, and enough take part.

        Others than their nodes, which may yet come, may say that clients have too few rows.
        """
        known = len(self._hosts) + len(self._left_out) >= len(self.counted)
        return known and len(self._hosts) >= self._needed(least)

    def _needed(self, least: int) -> int:
        able = len(self.counted) - len(self._left_out)
        return max(least, able) if self._everyone else least

    def _call(self) -> bool:
        """Looks up who is a member now; returns whether that has changed."""
        if self._roll is None:
            return False
        before, self.members = self.members, self._roll()
        self.clients = max(self.clients, 1 + max(self.members, default=-1))
        return self.members != before

    @property
    def _everybody(self) -> Collection[int]:
        return range(self.clients) if self.members is None else self.members

    @property
    def counted(self) -> list[int]:
        """The clients that are counted on, ascending."""
        return sorted(self._everybody)

    def _is_over(self, end: float, *, enough: bool) -> bool:
        """Whether to stop waiting for nodes that have not answered."""
        given_up = not self._answers.silent or time.monotonic() > end
        return given_up or (enough and not self._grid.fixed)

    def _is_hopeless(self, least: int) -> bool:
        """Whether it is plain from equal refusals that the run cannot begin."""
        refused = self._answers.unanimous if self._grid.joins else 0
        return refused > 1 and len(self.counted) - refused < self._needed(least)

    def look(self) -> bool:
        """Asks nodes that have joined since; returns whether clients have joined, left or moved.

        A client moves when its node is offline and another one hosts it with as many rows: without
        registered keys, a node that restarts gets a new number.
        """
        changed = self._call()
        left = changed and self._let_go()
        new = self._answers.ask() | changed
        found = (new or bool(self._rivals)) and self._take_in(new=new)
        self.away = self.absent()
        return found or left

    def _let_go(self) -> bool:
        """Takes clients that are no members from their nodes; returns whether there were any."""
        gone = sorted(self._hosts.keys() - {*self.counted})
        for client in gone:
            self._answers.forget(self._hosts.pop(client))
        if gone:
            called = few(gone, self._names())
            _log.warning("clients %s are no members any more: the run goes on without them", called)
        return bool(gone)

    def _take_in(self, *, new: bool) -> bool:
        """Assigns clients to nodes that may host them now; returns whether any were assigned."""
        before = self._hosts
        self._seat(before, self._answers.entries if new else self._rivals)
        came = sorted(self._hosts.keys() - before.keys())
        moved = sorted(c for c, node in before.items() if self._hosts[c] != node)
        if came:
            called = few(came, self._names())
            _log.info("clients %s have come, and take part from now on", called)
        if moved:
            _log.warning("clients %s are on other nodes now", few(moved, self._names()))
        if new or moved:
            self._settle()
        return bool(came or moved)

    # --- What is known -----------------------------------------------------------------------

    def roster(self, clients: int | None = None) -> Roster:
        """Returns the first so many clients, or all, with those that have left, and their nodes."""
        everyone = range(self.clients if clients is None else clients)
        nodes = [self._hosts.get(client) for client in everyone]
        entries = self._answers.entries
        rows = [0 if node is None else entries[node].clients[c] for c, node in enumerate(nodes)]
        unscored = {
            client: why
            for node in set(self._hosts.values())
            for client, why in entries[node].unscored.items()
            if self._hosts.get(client) == node and client in everyone
        }
        kind = self._kind._replace(units=self._units or Units())
        names = {client: name for client, name in self._names().items() if client in everyone}
        own = sum(node is not None and entries[node].own_data for node in nodes)
        return Roster(nodes, rows, kind, names, unscored, own)

    def _names(self) -> Names:
        given = {
            client: name
            for node, entry in self._answers.entries.items()
            for client, name in entry.names.items()
            if self._hosts.get(client, node) == node
            and (client in self._hosts or client in self._left_out)
        }
        return checked_names(given, self.clients)

    def notes(self) -> dict[str, dict[str, str]]:
        """Returns entries of the results: clients with too few rows, by name, and why."""
        names, found = self._names(), {"left-out": self._left_out}
        found["unscored"] = dict(self.roster().unscored)
        return {
            key: {names.get(client, str(client)): why for client, why in sorted(some.items())}
            for key, some in found.items()
            if some
        }

    @property
    def approving(self) -> list[int]:
        """Clients of sites that approve each run first, ascending."""
        entries = self._answers.entries
        return sorted(client for client, node in self._hosts.items() if entries[node].approval)

    @property
    def releasing(self) -> list[int]:
        """Clients of sites that want models exported with a release only, ascending."""
        entries = self._answers.entries
        return sorted(client for client, node in self._hosts.items() if entries[node].release)

    def absent(self) -> dict[int, str]:
        """Returns the clients that cannot be asked now, and why."""
        away = self._nodes.difference(self._grid.get_node_ids())
        counted = self.counted
        if not away and len(self._hosts) == len(counted):
            return {}
        on_line = self._grid.on_line()
        found = {}
        for client in counted:
            node = self._hosts.get(client)
            if node is None:
                found[client] = self._why(client)
            elif node in away:
                reason = f"its node {self._answers.at_work(node)}"
                found[client] = reason if node in on_line else "off line"
        return found

    def whom(self) -> str:
        """Describes the clients that cannot be asked now, and why."""
        return self._reasons(self.absent())

    def too_few(self, least: int) -> str:
        """Describes a lack of clients, and the reasons of those missing."""
        absent, among = self.absent(), len(self.counted)
        there = among - len(absent)
        told = [f"{there} of {among} clients can take part, but {least} are needed"]
        known, remedy = self._answers.in_words(), ""
        others = (e for e in self._answers.entries.values() if e.kind != self._kind)
        if absent.keys() - {client for entry in others for client in entry.clients}:
            remedy = "start the missing nodes, or lower min-clients"
        if self._everyone and not self._grid.fixed and there:
            look = "engram run --check says what is wrong with their tables"
            remedy = f"{look}; min-clients={there} does without them"
        return "; ".join(filter(None, [*told, self._reasons(absent), known, remedy]))

    def _reasons(self, why: Mapping[int, str]) -> str:
        return reasons(why, self._names())

    def _why(self, client: int) -> str:
        if client in self._left_out:
            return self._left_out[client]
        for entry in self._answers.entries.values():
            if client in entry.clients and entry.kind != self._kind:
                return entry.kind.unlike(self._kind)
        return self._answers.refusal(client) or "no node hosts it"

    # --- Who hosts whom ----------------------------------------------------------------------

    def _seat(self, hosts: dict[int, int], nodes: Iterable[int]) -> None:
        entries = self._answers.entries
        self._hosts = seated(
            hosts, entries, nodes, self._everybody, kind=self._kind, present=self._grid.on_line()
        )
        self._left_out = short_of_rows(entries, {*self._everybody} - self._hosts.keys())

    def _settle(self) -> None:
        """Notes which nodes claim clients of others, and warns of each new one once."""
        self._nodes, self._rivals = frozenset(self._hosts.values()), []
        for node, entry in self._answers.entries.items():
            others = [c for c in claims(entry, self._everybody) if self._hosts.get(c) != node]
            if others and entry.kind == self._kind:
                self._rivals.append(node)
            if others and node not in self._settled:
                alike = entry.kind == self._kind
                reason = "other nodes host them already" if alike else entry.kind.unlike(self._kind)
                called = self._answers.called(node)
                clients = few(others, self._names())
                _log.warning("%s takes no part with clients %s: %s", called, clients, reason)
            self._settled.add(node)


def attendance_of(
    grid: Engine, e: Experiment, *, training: str, kind: Kind | None, open_: bool | None = None
) -> Attendance:
    """Returns an experiment's attendance, before any node has been asked.

    With ``open_`` the run's clients are the members of the grid's federation, as they come and
    go; None: if they are as many when the run begins. The rest is as for ``Attendance``.

    Raises:
        Refused: Some clients of a run on nodes have no part in it, but its clients are not those of
            the federation.
    """
    membership = grid.membership
    if open_ is None:
        open_ = membership is not None and membership.is_whole(e)
    clients = e.num_clients
    roll: Callable[[], Set[int]] | None = None
    if membership is not None and open_:
        clients, roll = min(clients, membership.clients), membership.members
    elif membership is not None and e.without:
        expected = f"empty unless num-clients is the federation's, {membership.clients}"
        raise Refused(must("without", e.without, expected))
    if e.without:
        everyone: Callable[[], Set[int]] = roll or partial(frozenset, range(clients))

        def others() -> Set[int]:
            return everyone() - e.withdrawn

        roll = others
    return Attendance(
        grid,
        clients,
        training=training,
        settings=e.digest(),
        kind=kind,
        patience=min(60.0, e.timeout),
        usable=possible_for(e),
        roll=roll,
        tokenizer=tokenizer_for(e.text) if e.text and kind is None else None,
    )


def query_roster(grid: Engine, num_clients: int, *, patience: float = 60) -> Roster:
    """Asks every node for its clients until each of ``0..num_clients-1`` is hosted.

    Raises:
        RunStopped: If no node hosts some client.
    """
    attendance = Attendance(grid, num_clients, patience=patience)
    attendance.wait(num_clients)
    return attendance.roster()
