"""What a run has learned: the common model, and the models that clients are served by."""

from collections.abc import Iterator, Set
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from client.memory import DiskStore, RamStore
from client.remembered import ADAPT_THERE
from client.serving import Client, check_served, serving
from engram.aggregates import sent
from engram.checks import must
from engram.models import Model, keep
from engram.models.plain import Shifted
from engram.models.units import InUnits
from engram.tree import part
from engram.types import Candidates, Params
from engram.units import Units
from federation.aggregation import aggregate_of
from federation.data.federated import FederatedData, federated_data, model_for
from federation.data.standards import own_units, standardized_by
from federation.errors import DataError, Refused, few_names
from federation.experiment import Experiment
from federation.methods.network import KEPT, NetworkMethod
from federation.names import shown_name
from federation.roster import Kind
from federation.streams import Stream, torch_generator
from federation.tensors import difference
from server.record import Checkpoint, RunRecord
from strategies.scorekeeping import Scoring

__all__ = ["Learned"]


class Learned:
    """What a run has learned.

    Args:
        record: The run.
        experiment: Its settings.
        pick: The key of the results, such as ``selected``, whose round's models are wanted; empty
            for those of the last round.

    Attributes:
        record: As given.
        experiment: As given, for this machine's processor.
    """

    def __init__(self, record: RunRecord, experiment: Experiment, pick: str = "") -> None:
        self.record, self._pick = record, pick
        self.experiment = experiment.model_copy(update={"device": "cpu"})

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

    @cached_property
    def kind(self) -> Kind:
        """What the rows of its data are like."""
        return self._recorded or self.data.kind

    @property
    def _recorded(self) -> Kind | None:
        return Kind.from_row(next(iter(self.record.rows()), {}))

    @cached_property
    def data(self) -> FederatedData:
        """The clients' rows.

        Raises:
            DataError: If they cannot be read, or are others: nodes may have had data of their own.
        """
        found = federated_data(self.experiment)
        if self._on_nodes and not self._trained_on(found):
            dataset = self.experiment.source.described
            raise DataError(f"{dataset} has other rows here than on the run's nodes")
        recorded = self._recorded
        return found if recorded is None else found._replace(units=recorded.units)

    @property
    def _on_nodes(self) -> bool:
        """Whether clients were nodes' of Flower, whose rows and memories may be elsewhere."""
        return bool(self.record.config["engine"] == "flower")

    def _trained_on(self, data: FederatedData) -> bool:
        """Returns whether rows are like those of the run, and its clients have as many to test."""
        recorded = self._recorded
        if recorded is not None and recorded._replace(units=Units()) != data.kind:
            return False
        clients = (self.record.results or {}).get("clients", {})
        if self.experiment.protocol != "standard" or not {"ids", "queries"} <= clients.keys():
            return True
        sizes = [len(data.test.rows[client]) for client in clients["ids"]]
        return sizes == [int(count) for count in clients["queries"]]

    @cached_property
    def network(self) -> Model:
        """The network.

        Raises:
            Refused: If this process does not know it.
        """
        return model_for(self.experiment, self.kind)

    def network_of(self, client: int) -> Model:
        """Returns the network in a client's units; see ``kind_of``."""
        return model_for(self.experiment, self.kind_of(client))

    def kind_of(self, client: int) -> Kind:
        """Returns what a client's rows are like, with its own units, where it has such.

        Raises:
            DataError: If it has, and its rows are elsewhere.
        """
        if not self.standardizes_by_client:
            return self.kind
        return self.kind._replace(units=own_units(self.experiment, self.data, client))

    @property
    def standardizes_by_client(self) -> bool:
        """Whether inputs are standardized by each client's own rows.

        Raises:
            DataError: If that depends on the rows, and they are elsewhere.
        """
        e = self.experiment
        if e.standardize == "auto":
            return e.privacy != "none" and standardized_by(e, self.data) == "client"
        return e.standardize == "client"

    @property
    def trains_network(self) -> bool:
        """Whether the method trains networks."""
        return isinstance(self.experiment.own, NetworkMethod)

    def number(self, client: int | str) -> int:
        """Returns a client's number, given its name: that number, where it has no other name.

        Raises:
            Refused: If there is no such client.
        """
        names = self.record.names
        numbers = {names.get(n, str(n)): n for n in range(self.experiment.num_clients)}
        if (name := shown_name(client)) not in numbers:
            all_of = f"in 0..{len(numbers) - 1}" if not names else f"one of {few_names(numbers)}"
            raise Refused(must("client", client, all_of))
        return numbers[name]

    def called(self, client: int) -> str:
        """Returns a client's name, or its number."""
        return self.record.names.get(client, str(client))

    def memory(self, client: int) -> Params:
        """Returns what a client remembers; empty if it remembers nothing.

        Raises:
            Refused: If the clients' memories are on nodes of their own.
        """
        checkpoint = self.checkpoint
        if checkpoint.memories is None:
            return self._beside(client) if self._clients_keep else {}
        store = RamStore()
        store.restore(checkpoint.memories)
        return store.load(client, None, before=checkpoint.server_round + 2) or {}

    @property
    def _clients_keep(self) -> bool:
        """Whether what clients keep is a model that they are served by, or a part of one."""
        own = self.experiment.own
        if not isinstance(own, NetworkMethod) or (own.keeps_memory and own.serves == KEPT):
            return True
        # What a rule has beside the network's parameters serves nobody.
        parts = any("/" not in name for name in self.network.personal)
        return self.network.kept is not None or parts

    def _beside(self, client: int) -> Params:
        """Returns what a client remembers of a run on Ray, whose nodes keep it in the run's folder.

        Raises:
            Refused: If its node is elsewhere.
        """
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
        return store.load(client, None, before=server_round + 2) or {}

    @property
    def results(self) -> dict[str, Any]:
        """Results of the run about these models; empty while it is not finished."""
        found = self.record.results or {}
        return found[self._pick] if self._pick else found

    @property
    def when(self) -> str:
        """The round whose models these are, in words."""
        if self._pick:
            return f"after round {self.checkpoint.server_round}, which validation rows pick"
        return f"after {self.results['rounds']} rounds"

    @property
    def common(self) -> Params:
        """The common model, with the arrays of a client's own as they begin.

        Raises:
            Refused: If it is another network's, of which this process knows one by the same name.
        """
        network, found = self.network, self.checkpoint.model
        start = network.init(torch_generator(self.experiment.seed, Stream.MODEL))
        wrong = difference(found, keep(start, network.personal, personal=False))
        if wrong is not None:
            name = self.experiment.model
            raise Refused(
                f"{self.record.folder} has learned another network than the one called {name} "
                f"here: {wrong}"
            )
        return start | found

    def personal(self, client: int) -> Candidates:
        """Returns the network, or the mixture of networks, that a client is served by.

        Raises:
            Refused: If its memory is elsewhere, or its rows are and it is fine-tuned on them; or
                fine-tuning diverges.
        """
        if why := (self.record.results or {}).get("left-out", {}).get(self.called(client)):
            raise Refused(f"client {self.called(client)} had no part in the run: {why}")
        e, checkpoint, memory = self.experiment, self.checkpoint, self.memory(client)
        aggregate = aggregate_of(e, network=self.network)
        _, own = sent(aggregate, checkpoint.model, checkpoint.state, [client])
        received = self.common | {name: leaf[0] for name, leaf in own.items()}
        unseen = client in Scoring.of(e).unseen
        served = Client.of(client, received, memory, unseen=unseen)
        found = serving(e, self.network, lambda: self._rows_of(client), served)
        check_served(e, self.common, found, self.called(client))
        return found

    def _rows_of(self, client: int) -> FederatedData:
        """Returns the rows, for a client that is served by what is made of them.

        Raises:
            Refused: If they are on its node.
        """
        try:
            return self.data
        except DataError as error:
            if not self._on_nodes:
                raise
            raise Refused(
                f"client {self.called(client)} is served by the common model after fine-tuning on "
                f"its rows, which are not here ({error}): {ADAPT_THERE}"
            ) from error

    @property
    def shared(self) -> Params:
        """The arrays that all clients share: of a network, its parameters, as ``parameters``.

        Raises:
            Refused: If there are several networks.
        """
        found = self.checkpoint.model
        if not self.trains_network:
            return found
        w, candidates = self.common, self.network.candidates
        if candidates is not None and len(several := candidates(w).models) > 1:
            raise Refused(
                f"{self.experiment.method} has {len(several)} common models: export a client's"
            )
        return self.parameters(w, part(found).keys())

    def parameters(self, w: Params, some: Set[str]) -> Params:
        """Returns a network's parameters by the names that its module has for them.

        Those that are shared between layers stand under each of their names.

        Args:
            w: The network's parameters, and running statistics.
            some: Names of those that are wanted.

        Raises:
            Refused: If the module that predicts with them is another than the network's own.
        """
        network = self.network
        assert network.module is not None  # for mypy: networks have it
        module = network.module(part(w))
        if isinstance(module, Shifted):
            if some & network.personal:
                raise Refused(
                    f"{self.experiment.method} has a bias before the last layer, which has none "
                    "of its own: export the client's model"
                )
            module = module.network
        module = module.network if isinstance(module, InUnits) else module
        names = {network.names.get(name, name) for name in some}
        wanted = {id(leaf) for name, leaf in _arrays(module) if name in names}
        return {name: leaf.detach() for name, leaf in _arrays(module) if id(leaf) in wanted}


def _arrays(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields parameters and buffers, under each of their names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
