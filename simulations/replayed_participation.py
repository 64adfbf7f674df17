"""Replays the participation that a run's record has: nodes of this process come and go by it.

A run on nodes is repeated with the same rows, and without the machines: in each round the clients
take part that took part there, and the members are those that were.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from engram.client.hosts import Host
from engram.core.checks import must
from engram.data.schema.columns import Kind
from engram.link.server.membership import Membership
from engram.runs.run import Run
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.simulations.grid import InProcessGrid
from engram.simulations.in_process import Direct


class Participation(NamedTuple):
    """Who was a member of a run, and who took part, by round."""

    clients: int  # with which the run began
    members: Mapping[int, frozenset[int]]  # of each round, from the first that is recorded
    cohorts: Mapping[int, frozenset[int]]  # clients whose updates were merged
    kind: Kind | None  # of its data; None where it is of clients, too, that have no part now

    @classmethod
    def of(cls, experiment: Experiment) -> Self:
        """Reads the record that the setting ``participation`` names.

        Raises:
            Refused: There is none; or it does not fit the settings.
        """
        e, folder = experiment, Path(experiment.participation)
        record = Run.open(folder)
        rows, clients = record.rows(), int(record.settings["num-clients"])
        everyone = range(clients)
        members = {row["round"]: frozenset(row.get("members", everyone)) for row in rows}
        cohorts = {
            row["round"]: frozenset(row["cohort"]) - {*map(int, row["absent"])}
            for row in rows
            if "cohort" in row and "absent" in row
        }
        kind = Kind.from_row(next(iter(rows), {})) if not e.without else None
        found = cls(clients, members, cohorts, kind)
        if lacks := {*range(1, e.rounds + 1)} - cohorts.keys():
            wanted = f"the folder of a run of {e.rounds} rounds, which tell their clients"
            raise Refused(must("participation", f"{folder} (round {min(lacks)} lacks)", wanted))
        most = max(map(len, cohorts.values()))
        if e.clients_per_round < most and "clients_per_round" not in e.own.unread:
            raise Refused(must("clients-per-round", e.clients_per_round, f"at least {most}"))
        last = max(max(each, default=0) for each in members.values())
        if e.num_clients <= last:
            raise Refused(must("num-clients", e.num_clients, f"more than {last}"))
        few = [r for r, each in cohorts.items() if len(each - e.withdrawn) < e.least_clients]
        if e.without and few:
            wanted = f"clients without whom {e.least_clients} others take part in each round"
            raise Refused(must("without", f"{e.without} (round {min(few)})", wanted))
        if e.unseen_clients:
            raise Refused(must("unseen-clients", e.unseen_clients, "0 with participation"))
        return found


class _Members(Membership):
    """The members of the present round."""

    now: frozenset[int] = frozenset()

    def members(self) -> frozenset[int]:
        return self.now

    def is_whole(self, experiment: Experiment) -> bool:
        del experiment
        return True


class ReplayedGrid(InProcessGrid):
    """A node for each client, there only while the record says so."""

    replays = True
    membership: _Members

    def __init__(
        self, host: Host, clients: int, script: Participation, direct: Direct | None
    ) -> None:
        super().__init__(host, [[client] for client in range(clients)], direct)
        self._script, self.kind, self.still = script, script.kind, False
        self.membership = _Members(Path(), script.clients)
        self.stage(0, training=False)

    def stage(self, server_round: int, *, training: bool) -> None:
        """Lets those clients come and go that do so before a round, or before its evaluation."""
        script = self._script
        self.membership.now = script.members.get(server_round) or script.members[1]
        self._present = script.cohorts[server_round] if training else self.membership.now

    def get_node_ids(self) -> Iterable[int]:
        """Returns the nodes of the clients that are there."""
        return [client + 1 for client in sorted(self._present)]
