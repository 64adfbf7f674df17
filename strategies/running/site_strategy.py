"""The base of strategies for tables: all sites are asked, and their replies are screened."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from logging import getLogger
from typing import Any, Final, Self

from engram.core.types import Params
from engram.guards.noise import Noise
from engram.settings.errors import RunStopped, brief, one_line
from engram.settings.experiment import Experiment
from engram.settings.fingerprint import fingerprint
from engram.strategies.running.base import Nodes, Row, RunStrategy
from engram.strategies.running.reply_border import Rejected, read_reply
from engram.wire.messages import Content, Question, Reply
from engram.wire.roster import Roster
from engram.wire.wire import CLIENTS, CONFIG, read_int, read_list

_log = getLogger("flwr.engram")

TOTALS: Final = ("turns", "reward", "regret")
"""Sums that sites of bandits report: of turns, and of rewards and regrets in these."""

Read = Callable[[Content, list[int]], None]
Records = Mapping[str, Params]


class SiteStrategy(RunStrategy):
    """Asks every online site in each round."""

    def __init__(self, experiment: Experiment, roster: Roster) -> None:
        self.meet(roster)
        self._least = max(1, experiment.least_clients)
        self._asked: list[tuple[Question, list[int]]] = []
        self._wanted: set[int] = set()
        self._bounded: set[int] = set()
        self.left_out: dict[int, str] = {}

    @classmethod
    def build(cls, experiment: Experiment, roster: Roster, noise: Noise) -> Self:
        """Builds the strategy of a run."""
        del noise
        return cls(experiment, roster)

    def meet(self, roster: Roster) -> None:
        """Updates the sites and their nodes."""
        self.roster, self.sites = roster, roster.sites()

    def row(self, absent: Mapping[int, str]) -> Row:
        """Returns the cohort of a round, and the number of absent sites."""
        return {"cohort": sorted({*self.cohort, *absent}), "left-out": len(absent)}

    @property
    def cohort(self) -> list[int]:
        """The clients that the last questions ask, ascending."""
        return sorted(client for _, clients in self._asked for client in clients)

    def questions(
        self,
        kind: str,
        server_round: int,
        config: Mapping[str, Any],
        grid: Nodes,
        arrays: Callable[[list[int]], Records | None],
        among: Collection[int] | None = None,
    ) -> list[Question]:
        """Returns a question for every online node, and notes the clients it asks.

        ``arrays`` returns those for a node, given its clients that are asked, or None to
        ask it nothing; ``among`` are the clients to ask, or None for all.
        """
        present = set(grid.get_node_ids())
        self._asked, self._wanted = [], set()
        for node, hosted in self.sites.by_node().items():
            clients = [client for client in hosted if among is None or client in among]
            records = arrays(clients) if clients else None
            if records is None:
                continue
            self._wanted |= set(clients)
            if node not in present:
                continue
            settings = {**config, "server-round": server_round, "fingerprint": fingerprint()}
            asked = {**settings, "clients": clients}
            question = Question(node, kind, {**records, CONFIG: asked})
            self._asked.append((question, clients))
        return [question for question, _ in self._asked]

    def gather(self, server_round: int, replies: Iterable[Reply], read: Read) -> dict[int, str]:
        """Reads the replies to the last questions; returns clients without usable ones, and why.

        ``read`` reads the content of one node's reply, given the clients asked, as for
        ``read_reply``.
        """
        answers = {reply.question: reply for reply in replies}
        asked = set(self.cohort)
        failed = {client: "off line" for client in self._wanted if client not in asked}

        def read_of(clients: list[int], content: Content) -> None:
            number = read_int(content[CLIENTS], "server-round")
            if number != server_round:
                raise ValueError(f"its reply is of round {brief(number)}")
            read(content, clients)

        for question, clients in self._asked:
            reply = answers.get(question)
            if reply is None:
                failed |= dict.fromkeys(clients, "no reply")
            elif isinstance(found := read_reply(reply, partial(read_of, clients)), Rejected):
                failed |= dict.fromkeys(clients, found.reason)
        return dict(sorted(failed.items()))

    def called(self, client: int) -> str:
        """Returns a client's name for messages."""
        return self.sites.names.get(client, str(client))

    def check_enough(self, usable: int) -> None:
        """Warns of the clients left out, and checks that enough others are usable.

        Raises:
            RunStopped: If there are too few.
        """
        for client, reason in sorted(self.left_out.items()):
            _log.warning("client %s is left out: %s", self.called(client), reason)
        if usable < self._least:
            some = sorted(self.left_out.items())[:10]
            reasons = "".join(f"; client {self.called(c)}: {r}" for c, r in some)
            raise RunStopped(f"{usable} of {self._least} sites are usable{reasons}")

    def name_bounded(self, clients: Iterable[int], max_weight: float) -> dict[str, list[int]]:
        """Warns once of each client with a claimed weight above ``max_weight``.

        Returns:
            The round's metric ``bounded``, a list of these clients; empty if there are none.
        """
        bounded = sorted(map(int, clients))
        for client in (client for client in bounded if client not in self._bounded):
            _log.warning(
                "client %s would have more weight, by the rows and the noise that it claims, "
                "than max-weight = %g times what the median client has: it counts as that",
                *(self.called(client), max_weight),
            )
        self._bounded.update(bounded)
        return {"bounded": bounded} if bounded else {}


def read_split(
    content: Content, clients: list[int]
) -> tuple[list[int], dict[int, str], dict[int, str]]:
    """Returns a reply's clients that succeeded, why others failed, and remarks on the former.

    Raises:
        KeyError: If an entry is missing.
        TypeError: If it is of another type.
        ValueError: If these are not the clients that were asked.
    """
    details = content[CLIENTS]
    ids, failed = read_list(details, "ids", int), read_list(details, "failed", int)
    reasons = read_list(details, "reasons", str)
    noted, notes = read_list(details, "noted", int), read_list(details, "notes", str)
    if sorted(ids + failed) != clients or ids != sorted(ids):
        raise ValueError(f"its node answers for {brief(ids)} and {brief(failed)}")
    if len(failed) != len(reasons) or len(noted) != len(notes) or set(noted) - set(ids):
        raise ValueError("its node's lists do not fit each other")
    return (
        ids,
        {c: one_line(r) for c, r in zip(failed, reasons, strict=True)},
        {c: one_line(n) for c, n in zip(noted, notes, strict=True)},
    )


def sites_in_words(row: Mapping[str, Any]) -> str:
    """Describes the numbers of sites in a round; "" for another kind of row."""
    if "sites" not in row:
        return ""
    left_out = row["left-out"]
    count = len(left_out) if isinstance(left_out, Mapping) else left_out
    return f"{row['sites']} sites" + (f", {count} left out" if count else "")


def regret_in_words(row: Mapping[str, Any]) -> str:
    """Describes the numbers of sites and their regret; "" for another kind of row.

    Of a sum over turns it says how many turns that are, and how many it lacks; of a mean over
    sites, how many sites that are, unless it is all.
    """
    words = sites_in_words(row)
    if not words:
        return ""
    words += f", regret {row['regret']:.4g}"
    if "told" in row:
        words += f" in {row['told']:.0f} turns"
    if untold := row.get("untold"):
        words += f", {untold:.0f} are not reported yet (see report-every)"
    if (reporting := row.get("reporting", row["sites"])) < row["sites"]:
        words += f", reported by {reporting} of them"
    return words
