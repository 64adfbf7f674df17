"""Attendance: which node hosts which client, from before the first round until after the last."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from functools import cache, partial
from itertools import chain
from logging import getLogger

from flwr.serverapp import Grid

from engram.checks import must
from engram.units import Moments, Units, comparable, merged
from federation.errors import Names, Refused, RunStopped, few
from federation.experiment import Experiment
from federation.names import checked_names
from federation.noise import secret_noise
from federation.roster import Roster
from federation.schema import Kind, Told
from server.answers import Answers
from server.grid import PatientGrid
from server.membership import Membership
from strategies import STRATEGIES

_log = getLogger("flwr.engram")

_SILENT = 3.0  # seconds of a wait until it is said whom it is for
_TOLD = 10  # reasons that an error names
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
        training: The training's name, which nodes keep memories under.
        settings: Digest of the run's settings, which nodes compare with theirs.
        kind: Kind of the run's data, if known from before. None: the kind that most nodes have; if
            tied, that of the node with the lowest client. Its units are then fitted on what nodes
            tell that have joined when the run begins.
        patience: Seconds without news after which the run begins with the clients that have joined.
        usable: Whether the run can be of a kind of data, asked where nodes' kinds differ: what a
            node claims to have may be impossible.
        roll: Returns who is a member of the federation now, and so counted on; None if all of
            ``num_clients`` are, from beginning to end.

    Attributes:
        clients: Number of clients that the run has had until the last look.
        members: Those that were counted on at the last look; None if all are, always.
        away: Clients that could not be asked at the last look, and why.
    """

    def __init__(
        self,
        grid: Grid,
        num_clients: int,
        *,
        training: str = "",
        settings: str = "",
        kind: Kind | None = None,
        patience: float = 60,
        usable: Callable[[Kind], bool] = lambda kind: True,
        roll: Callable[[], Set[int]] | None = None,
    ) -> None:
        self._grid = grid
        self._usable = usable
        self._patience = patience
        self._roll = roll
        self.clients = num_clients
        self.members: Set[int] | None = None
        self._call()
        self._answers = Answers(grid, training, settings)
        self._given = kind and kind._replace(units=Units())
        self._kind = self._given or Kind()
        self._units = kind and kind.units
        self._hosts: dict[int, int] = {}
        self._nodes: frozenset[int] = frozenset()  # those that host a client
        self._rivals: list[int] = []  # nodes that claim clients of other nodes
        self._left_out: dict[int, str] = {}  # clients that have too few rows, and why
        self.away: dict[int, str] = {}
        self._everyone = self.fixed  # whether all clients with enough rows are needed
        self._settled: set[int] = set()  # nodes whose ignored claims were warned of

    @property
    def fixed(self) -> bool:
        """Whether all nodes are there from the beginning, as in a simulation."""
        return self._answers.fixed

    @property
    def grows(self) -> bool:
        """Whether nodes may join later, as those of other machines do."""
        return not self.fixed and bool(getattr(self._grid, "joins", True))

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
        self._everyone = everyone or self.fixed
        now = time.monotonic()
        deadline, end, waiting = now + self._patience, now + timeout, Waiting()
        while not self._known(least):
            late = time.monotonic() > deadline  # read before asking nodes that have joined
            if self._answers.ask() | self._call():
                self._kind = self._given or self._usual()
                self._hosts = self._seated({}, self._answers.entries)
                self._left_out = self._short_of_rows()
                deadline = time.monotonic() + self._patience
                continue
            enough = len(self._hosts) >= self._needed(least)
            undecided = self._answers.awaits_approval and time.monotonic() < now + _DECISION
            late = late and (enough or not undecided)
            if self._answers.complete or (late and self._is_over(end, enough=enough)):
                break
            if isinstance(self._grid, PatientGrid):
                if self._grid.stopping:
                    raise RunStopped("ended before its first round, as `engram stop` asked for")
                waiting.tell(self.whom)
            time.sleep(0.1)
        if len(self._hosts) < (needed := self._needed(least)):
            raise RunStopped(self.too_few(needed))
        self._settle()
        self._units = self._fitted() if self._units is None else self._units
        if isinstance(self._grid, PatientGrid):  # else all of them are in this process
            _log.info(
                "roster: %d clients on %d nodes, all running this source",
                len(self._hosts),
                len(self._nodes),
            )
        self.away = self.absent()
        if self.away:
            later = "" if self._left_out.keys() == self.away.keys() else ", for now"
            reasons = self._reasons(self.away)
            _log.warning("the run goes on without some clients%s: %s", later, reasons)
        if unscored := self.roster().unscored:
            _log.warning("some clients train and are not scored: %s", self._reasons(unscored))

    def _known(self, least: int) -> bool:
        """Whether it is known of all clients where they are, and enough take part.

        That clients have too few rows may be said by others than their nodes, which may yet come.
        """
        known = len(self._hosts) + len(self._left_out) >= len(self._counted)
        return known and len(self._hosts) >= self._needed(least)

    def _needed(self, least: int) -> int:
        able = len(self._counted) - len(self._left_out)
        return max(least, able) if self._everyone else least

    def _call(self) -> bool:
        """Looks up who is a member now; returns whether that has changed."""
        if self._roll is None:
            return False
        before, self.members = self.members, self._roll()
        self.clients = max(self.clients, 1 + max(self.members, default=-1))
        return self.members != before

    @property
    def _counted(self) -> list[int]:
        """The clients that are counted on."""
        return sorted(range(self.clients) if self.members is None else self.members)

    def _is_over(self, end: float, *, enough: bool) -> bool:
        """Whether to stop waiting for nodes that have not answered."""
        if not self._answers.silent or time.monotonic() > end:
            return True
        return enough and not self.fixed

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
        gone = sorted(self._hosts.keys() - {*self._counted})
        for client in gone:
            self._answers.forget(self._hosts.pop(client))
        if gone:
            called = few(gone, self._names())
            _log.warning("clients %s are no members any more: the run goes on without them", called)
        return bool(gone)

    def _take_in(self, *, new: bool) -> bool:
        """Assigns clients to nodes that may host them now; returns whether any were assigned."""
        before = self._hosts
        self._hosts = self._seated(before, self._answers.entries if new else self._rivals)
        self._left_out = self._short_of_rows()
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
        rows = [0 if node is None else self._rows(node, c) for c, node in enumerate(nodes)]
        entries = self._answers.entries
        unscored = {
            client: why
            for node in set(self._hosts.values())
            for client, why in entries[node].unscored.items()
            if self._hosts.get(client) == node and client in everyone
        }
        kind = self._kind._replace(units=self._units or Units())
        names = {client: name for client, name in self._names().items() if client in everyone}
        return Roster(nodes, rows, kind, names, unscored)

    def _fitted(self) -> Units:
        """Returns units by the moments that the clients' nodes tell, merged in their order."""
        parts = [merged(self._told(name)) for name in Told._fields]
        return Units(*(part and part.standard() for part in parts))

    def _told(self, name: str) -> list[Moments]:
        """Returns nodes' moments of inputs or targets, and warns of those that are left out."""
        entries = self._answers.entries
        told = [
            (node, moments)
            for node in sorted(self._nodes, key=self._first)
            if (moments := getattr(entries[node].told, name)) is not None
        ]
        fits = comparable([moments for _, moments in told])
        for node in (node for (node, _), fit in zip(told, fits, strict=True) if not fit):
            _log.warning(
                "%s has no part in the units of the run's %s: what it tells of its own is of "
                "another number of columns, or more than a million times as large as others'",
                self._answers.called(node),
                name,
            )
        return [moments for (_, moments), fit in zip(told, fits, strict=True) if fit]

    def _first(self, node: int) -> int:
        return min(self._claims(node))

    def _names(self) -> Names:
        """Returns clients' names, as given by the nodes that host them."""
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

    def absent(self) -> dict[int, str]:
        """Returns the clients that cannot be asked now, and why."""
        away = self._nodes.difference(self._grid.get_node_ids())
        counted = self._counted
        if not away and len(self._hosts) == len(counted):
            return {}
        on_line = self._answers.on_line()
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
        """Describes that too few clients can take part, and what is known of the others."""
        absent = self.absent()
        among = len(self._counted)
        there = among - len(absent)
        told = [f"{there} of {among} clients can take part, but {least} are needed"]
        known, remedy = self._answers.in_words()
        remedy = remedy or "start the missing nodes, or lower min-clients"
        if self._everyone and not self.fixed and there:
            look = "engram run --check says what is wrong with their tables"
            remedy = f"{look}; min-clients={there} does without them"
        return "; ".join(filter(None, [*told, self._reasons(absent), known, remedy]))

    def _reasons(self, why: Mapping[int, str]) -> str:
        groups: dict[str, list[int]] = {}
        for client, reason in why.items():
            groups.setdefault(reason, []).append(client)
        names = self._names()
        told = [f"clients {few(clients, names)}: {reason}" for reason, clients in groups.items()]
        more = f"; ... {len(told)} in all" if len(told) > _TOLD else ""
        return "; ".join(told[:_TOLD]) + more

    def _why(self, client: int) -> str:
        """Returns why no node hosts a client."""
        if client in self._left_out:
            return self._left_out[client]
        for entry in self._answers.entries.values():
            if client in entry.clients and entry.kind != self._kind:
                return entry.kind.unlike(self._kind)
        return self._answers.refusal(client) or "no node hosts it"

    # --- Who hosts whom ----------------------------------------------------------------------

    def _short_of_rows(self) -> dict[int, str]:
        """Returns the clients that have too few rows to take part, and why."""
        counted = {*self._counted} - self._hosts.keys()
        return {
            client: why
            for entry in self._answers.entries.values()
            for client, why in entry.left_out.items()
            if client in counted
        }

    def _claims(self, node: int) -> dict[int, int]:
        """Returns the run's clients that a node says it hosts, with their numbers of rows."""
        clients, members = self._answers.entries[node].clients, self.members
        everyone = range(self.clients) if members is None else members
        return {client: rows for client, rows in clients.items() if client in everyone}

    def _rows(self, node: int, client: int) -> int:
        return self._answers.entries[node].clients[client]

    def _usual(self) -> Kind:
        """Returns the commonest usable kind of data among nodes with clients of the run."""
        first = {n: min(self._claims(n)) for n in self._answers.entries if self._claims(n)}
        ordered = sorted(first, key=lambda node: first[node])
        counts = Counter(self._answers.entries[node].kind for node in ordered)
        kinds = sorted(counts, key=lambda kind: -counts[kind])  # the first if tied
        usable = filter(self._usable, kinds) if len(kinds) > 1 else ()
        return next(chain(usable, kinds), Kind())

    def _seated(self, hosts: dict[int, int], nodes: Iterable[int]) -> dict[int, int]:
        """Returns each client's node after these nodes got the clients that they may host."""
        present, found = self._answers.on_line(), dict(hosts)
        for node in nodes:
            if self._answers.entries[node].kind != self._kind:
                continue
            for client, rows in self._claims(node).items():
                host = found.get(client)
                gone = host not in present and node in present
                if host is None or (gone and rows == self._rows(host, client)):
                    found[client] = node
        return found

    def _settle(self) -> None:
        """Notes which nodes claim clients of others, and warns of each new one once."""
        self._nodes, self._rivals = frozenset(self._hosts.values()), []
        for node, entry in self._answers.entries.items():
            others = [c for c in self._claims(node) if self._hosts.get(c) != node]
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
    grid: Grid, e: Experiment, *, training: str, kind: Kind | None, open_: bool | None = None
) -> Attendance:
    """Returns an experiment's attendance, before any node has been asked.

    Args:
        grid: The nodes.
        e: The settings.
        training: As for ``Attendance``.
        kind: As for ``Attendance``.
        open_: Whether the run's clients are the members of the grid's federation, as they come and
            go; None: if they are as many when the run begins.

    Raises:
        Refused: Some clients of a run on nodes have no part in it, but its clients are not those of
            the federation.
    """
    membership: Membership | None = getattr(grid, "membership", None)
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
        roll = partial(_others, roll or partial(frozenset, range(clients)), e.withdrawn)
    patience = min(60.0, e.timeout)

    @cache
    def usable(claimed: Kind) -> bool:
        roster = Roster([None] * e.num_clients, [0] * e.num_clients, claimed)
        try:
            STRATEGIES[e.own.plug_in].build(e, roster, secret_noise)
        except Exception as error:  # what a node claims must not end the run of the others
            _log.debug("the run cannot be of a kind of data that a node claims", exc_info=error)
            return False
        return True

    return Attendance(
        grid,
        clients,
        training=training,
        settings=e.digest(),
        kind=kind,
        patience=patience,
        usable=usable,
        roll=roll,
    )


def _others(roll: Callable[[], Set[int]], withdrawn: Set[int]) -> Set[int]:
    return roll() - withdrawn


def query_roster(grid: Grid, num_clients: int, *, patience: float = 60) -> Roster:
    """Asks every node for its clients until each of ``0..num_clients-1`` is hosted.

    Raises:
        RunStopped: If no node hosts some client.
    """
    attendance = Attendance(grid, num_clients, patience=patience)
    attendance.wait(num_clients)
    return attendance.roster()
