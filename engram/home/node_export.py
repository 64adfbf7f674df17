"""Exports the model that serves a client of a node, without the coordinator."""

from functools import cached_property
from pathlib import Path
from typing import Any, Final

from engram.client.disk_memory import DiskStore
from engram.client.hosts.rows import trained_table
from engram.client.memory import RamStore
from engram.client.served_slots import Scored, read_scored
from engram.client.training_description import Training
from engram.core.method import Served
from engram.core.rounds import received_by
from engram.core.slots import flat, is_known, unflat, unknown
from engram.core.types import Params
from engram.data.federated import FederatedData
from engram.data.schema.columns import Kind
from engram.data.tables.tables import TableData
from engram.home.exported import Package
from engram.home.learned import Learned, Origin, models_of
from engram.home.run_models import LearnedNetworks
from engram.home.serving import served_of
from engram.runs.release import release_line
from engram.settings.errors import UNNAMED, DataError, Names, Refused
from engram.tables.federation.models import LearnedTables
from engram.wire.tensors import difference

_EVER: Final = 2**62  # after any round
_OTHER_ROWS: Final = (
    "Its client's data have changed since it learned from them: what is said of rows is true of "
    "those that are there now."
)
_WITHOUT_ROWS: Final = (
    "Its scores and the ranges of its inputs are not known, since its rows cannot be read here: {}"
)


class Remembered(Learned):
    """The model that serves a client of a node, which knows the client's memory alone.

    Of networks it is the one that was scored last; where it depends on nothing but the client's
    memory, and of coefficients, the newest one.

    Raises:
        Refused: If nothing is kept of the client.
    """

    def __init__(
        self, training: Training, client: int, store: DiskStore, release: Path | None = None
    ) -> None:
        self._release = release
        self.training, self.client, self._folder = training, client, store.folder
        self.experiment = training.experiment
        scored = read_scored(store, client)
        if scored is None:
            newest = store.newest(client, before=_EVER)
            if not newest:
                raise Refused(
                    f"{store.folder} has no memory of client {client}: it had no part in the "
                    "training yet; once a round has been scored, or it has trained, there is one"
                )
            scored = Scored(newest, {}, store.read(client, newest))
        self._scored = scored

    @property
    def results(self) -> dict[str, Any]:
        """Results of the run, which the coordinator has."""
        return {}

    @property
    def names(self) -> Names:
        """The names that clients have, which the coordinator knows."""
        return UNNAMED

    @property
    def kind(self) -> Kind:
        """Shapes and types of the node's rows."""
        return self.training.kind

    def memory(self, client: int) -> Params:
        """Returns the arrays that a client remembers; none if it remembers nothing."""
        return self._scored.memory or {} if client == self.client else {}

    def origin(self, client: int | str | None, rows: str = "") -> Origin:
        """Returns the origin of the client's model."""
        e, training, last = self.experiment, self.training, self._scored.server_round
        settings, why = e.to_config(), self.unreadable
        if training.own:  # where a site has its rows is nobody's business
            del settings["dataset"]
        notes = [_WITHOUT_ROWS.format(why)] if why else []
        return Origin(
            e,
            f"personal model of {client}",
            str(client),
            settings,
            training.source,
            {"run": f"{training.run or self._folder.name}, after round {last}"}
            | release_line(self._release),
            rows or f"{e.source.described}: rows of client {client}, and others'",
            None if e.is_private else {},  # only the coordinator knows how much was spent
            notes + [_OTHER_ROWS] * training.has_other_rows,
        )


class _Networks(Remembered, LearnedNetworks):
    """The network that serves a client of a node."""

    may_lack_rows = True

    @property
    def by_task(self) -> bool:
        """Whether each client has a schema of its own, by its task in the data."""
        return not self.training.own and super().by_task

    @cached_property
    def data(self) -> FederatedData:
        """The client's rows."""
        return self.training.data(self.client)

    @property
    def standardizes_by_client(self) -> bool:
        """Whether inputs are standardized by each client's own rows."""
        e = self.experiment
        table = e.is_private and e.source.has_columns
        return e.standardize == "client" or (e.standardize == "auto" and table)

    def rows_of(self, client: int) -> FederatedData:
        """Returns data with the client's rows.

        Raises:
            Refused: If they cannot be read.
        """
        try:
            return self.data
        except DataError as error:
            raise Refused(
                f"the model of client {client} is made of its rows, too, which cannot be read: "
                f"{error}"
            ) from error

    def served(self, client: int) -> Served:
        """Returns the client's served model, as the method says.

        Raises:
            Refused: If only a part of it is kept, or it is another network's.
        """
        e, method, scored, store = self.experiment, self.method, self._scored, RamStore()
        if scored.memory is not None:
            store.save(client, scored.memory, server_round=scored.server_round, durable=0)
        start = received_by(method, method.server.start, client)
        received = unflat(scored.received, start) if scored.received else unknown(start)
        if (wrong := difference(flat(received), flat(start))) is not None:
            raise Refused(
                f"client {client} was served by another network than the one called {e.model} "
                f"here: {wrong}"
            )
        given = self.network, store, received, client
        served = served_of(e, method, *given, before=scored.server_round + 1, names=UNNAMED)
        if not is_known(served):
            raise Refused(
                f"client {client} remembers no whole model, and nothing is kept here of what it "
                "received: a node keeps that each time that it scores a round (its log says so if "
                "--memory-limit leaves no room)"
            )
        return served


class _Tables(Remembered, LearnedTables):
    """The coefficients of a client of a node."""

    @cached_property
    def tables(self) -> TableData:
        """The client's table."""
        return trained_table(self.training, self.client)


def remembered_package(
    training: Training, client: int, store: DiskStore, release: Path | None = None
) -> Package:
    """Returns a node's client's serving model, with its card, naming a release.

    Raises:
        Refused: If nothing is kept of the client, or only a part of its model; or its rows are
            needed, and cannot be read.
    """
    e = training.experiment
    opened = _Networks if e.own.trains_network else _Tables
    return models_of(e).package(opened(training, client, store, release), client)
