"""The models of a run, opened by the family of its method."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from engram.client.disk_memory import DiskStore
from engram.client.memory import MemoryStore, RamStore
from engram.core.checks import must
from engram.core.types import Params
from engram.data.clients import shown_name
from engram.data.lazy import RowNumbers
from engram.data.schema.columns import Kind
from engram.runs.checkpoints import Checkpoint
from engram.runs.release import RELEASE, release_line
from engram.runs.run import Run
from engram.settings.base import Families
from engram.settings.errors import DataError, Names, Refused, few_names
from engram.settings.experiment import Experiment

if TYPE_CHECKING:
    from engram.home.exported import Package
    from engram.home.prediction_intervals import Columns


class Origin(NamedTuple):
    """The owner of a model, and its making."""

    experiment: Experiment
    what: str  # the model in a few words
    client: str  # empty if it is nobody's
    settings: dict[str, Any]
    source: str  # fingerprint of the source that trained it
    made: Mapping[str, str]  # more lines of the card's table, by heading
    rows: str  # the data that it was trained on
    # ``epsilon`` and ``delta``; empty without differential privacy; None if only the coordinator
    # knows.
    privacy: Mapping[str, Any] | None
    notes: Sequence[str] = ()


class Learned:
    """The models of a run of any family, as arrays.

    Args:
        record: The run.
        experiment: Its settings; kept for this machine's processor, and for all clients that came.
        pick: The key of the results, such as ``selected``, whose round's models are wanted; empty
            for those of the last round.
        tuned: Whether clients' models are wanted after fine-tuning.

    Attributes:
        picked: Whether they are of the round that validation rows picked.
    """

    picked = tuned = False

    def __init__(
        self, record: Run, experiment: Experiment, pick: str = "", *, tuned: bool = False
    ) -> None:
        self.record, self._pick, self.tuned, self.picked = record, pick, tuned, bool(pick)
        given = {"device": "cpu", "num_clients": record.clients}
        self.experiment = experiment.model_copy(update=given)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The newest intact checkpoint, or that of the picked round.

        Raises:
            Refused: If there is none.
        """
        if self._pick:
            return self.record.load_pick(self._pick)
        checkpoint = self.record.load_checkpoint()
        if checkpoint is None:
            raise Refused(f"{self.record.folder} has no checkpoint yet")
        return checkpoint

    @property
    def _recorded(self) -> Kind | None:
        return Kind.from_row(self.record.first_row)

    @cached_property
    def kind(self) -> Kind:
        """Shapes and types of the data's rows."""
        return self._recorded or Kind()

    def origin(self, client: int | str | None, rows: str = "") -> Origin:
        """Returns the origin of a client's model, by number or name; None for the common one.

        ``rows`` are those that it has learned from, by default the run's.
        """
        record, config = self.record, self.record.config
        name = self.called(client) if isinstance(client, int) else client or ""
        after = ", fine-tuned" if self.tuned else ""
        what = f"personal model of {name}{after}" if name else "common model"
        when = f"after {self.results.get('rounds')} rounds"
        if self.picked:
            when = f"after round {self.checkpoint.server_round}, which validation rows pick"
        made = {
            "run": f"{record.folder.name}, {when}",
            "engine": config["engine"],
            "versions": ", ".join(f"{name} {found}" for name, found in config["versions"].items()),
        }
        made |= release_line(record.folder / RELEASE)
        why, now = record.other_rows, "what is said of rows is true of those that are there now."
        about = self.experiment, what, name, record.settings, config["sources"][-1], made
        notes = [f"{why}: {now}"] if why else []
        return Origin(*about, rows or self._rows_in_words(name), record.results or {}, notes)

    def _rows_in_words(self, name: str) -> str:
        del name
        if self.record.on_nodes and self.unreadable is not None:
            return "data that its clients' nodes have"
        return self.experiment.source.described

    @property
    def unreadable(self) -> DataError | None:
        """Why the rows by which a model is described cannot be read here; None if they can."""
        try:
            self._check_data()
        except DataError as error:
            return error
        return None

    def _check_data(self) -> None:
        """Raises ``DataError`` if the clients' data cannot be read, or are others."""

    @property
    def shared(self) -> Params:
        """The arrays that all clients share."""
        return self.checkpoint.model

    def arrays_of(self, client: int) -> Params:
        """Returns the arrays of the model that serves a client, by name.

        Raises:
            Refused: If it keeps none, or they are elsewhere.
        """
        if found := self.memory(client):
            return found
        raise Refused(f"client {self.called(client)} keeps no model")

    def split(self, client: int) -> dict[str, RowNumbers]:
        """Refuses, as there is no network; see ``Run``."""
        del client
        raise self._no_network

    def predictions(self, client: int) -> "Columns":
        """Refuses, as there is no network; see ``Run``."""
        del client
        raise self._no_network

    @property
    def _no_network(self) -> Refused:
        return Refused(must("method", self.experiment.method, "one that trains networks"))

    def _check_rows(self, key: str, sizes: Sequence[int], *, alike: bool) -> None:
        """Refuses data unless its kind is alike, and clients have as many rows to test."""
        clients = (self.record.results or {}).get("clients", {})
        told = clients.get(key, [])
        numbers = clients.get("ids", range(len(told))) if told else []
        if not alike or [sizes[client] for client in numbers] != [int(count) for count in told]:
            dataset = self.experiment.source.described
            raise DataError(f"{dataset} has other rows here than on the run's nodes")

    @property
    def names(self) -> Names:
        """The names that clients have."""
        return self.record.names

    def number(self, client: int | str) -> int:
        """Returns a client's number, given its name: that number, where it has no other name.

        Raises:
            Refused: If there is no such client.
        """
        names = self.names
        numbers = {names.get(n, str(n)): n for n in range(self.experiment.num_clients)}
        if (name := shown_name(client)) not in numbers:
            all_of = f"in 0..{len(numbers) - 1}" if not names else f"one of {few_names(numbers)}"
            raise Refused(must("client", client, all_of))
        return numbers[name]

    def called(self, client: int) -> str:
        """Returns a client's name, or its number."""
        return self.names.get(client, str(client))

    @property
    def _store(self) -> MemoryStore:
        """Memories, in this process or in the run's folder; empty if none affects a model."""
        store, memories = RamStore(), self.checkpoint.memories
        if memories is not None:
            store.restore(memories)
        elif self._keeps:
            return self._beside()
        return store

    @property
    def _keeps(self) -> bool:
        """Whether clients' memories affect their models."""
        return True

    def memory(self, client: int) -> Params:
        """Returns the arrays that a client remembers; none if it remembers nothing.

        Raises:
            Refused: If the clients' memories are on nodes of their own.
        """
        return self._store.load(client, before=self.checkpoint.server_round + 2) or {}

    def _beside(self) -> MemoryStore:
        """Returns the memories of a run on Ray, from the run's folder."""
        folder, server_round = self.record.folder, self.checkpoint.server_round
        if self._pick and server_round != max(self.record.checkpoints(), default=0):
            raise Refused(
                f"what clients remembered in round {server_round} of {folder} is gone: nodes keep "
                "the last rounds' alone; there are the common model of that round, and clients' "
                "of the last"
            )
        store = DiskStore(folder / "memory" / self.record.config["training"])
        if not store.folder.is_dir():
            raise Refused(
                f"{folder} was run by `flwr run`: its memories are on the nodes, where engram "
                "memory export writes a client's model"
            )
        return store

    @property
    def results(self) -> dict[str, Any]:
        """Results of the run about these models; empty while it is not finished."""
        found = self.record.results or {}
        return found.get(self._pick, {}) if self._pick else found


class Models(NamedTuple):
    """The models of a family's runs.

    Attributes:
        learned: Opens those of a run, by the arguments of ``Learned``.
        package: Returns a client's model of a finished run, by its number, or the common one.
        adapted: Returns a model for a client that never took part, by its rows and its name.
    """

    learned: type[Learned]
    package: Callable[[Any, int | None], "Package"]
    adapted: Callable[[Any, Path, str], "Package"]


MODELS: Families[Models] = Families("models")
"""The models of each family that has some to take home."""


def models_of(experiment: Experiment) -> Models:
    """Returns the models of an experiment's family; of one without, clients' arrays alone."""
    try:
        return MODELS[experiment.own.plug_in]
    except KeyError:
        return Models(Learned, _refuse, _refuse)


def _refuse(learned: Learned, *_: object) -> "Package":
    raise Refused(f"{learned.experiment.method} has no model to export")
