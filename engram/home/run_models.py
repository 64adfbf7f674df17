"""Networks of a run: the common one, and those that serve clients."""

from collections.abc import Iterator, Set
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from engram.client.memory import RamStore
from engram.cohort.trainer.trainer import Trainer
from engram.core.checks import must
from engram.core.method import Method, Served, Slots
from engram.core.rounds import received_by
from engram.core.slots import flat, has_tuned, is_known, over_slots, unflat, unknown
from engram.core.standardization import Units
from engram.core.types import Params
from engram.data.federated import FederatedData, Split, model_for
from engram.data.image_axes import PART
from engram.data.lazy import RowNumbers
from engram.data.load_federation import federated_data
from engram.data.readers.in_memory import read_given
from engram.data.schema.columns import Kind
from engram.data.standardize import in_units, own_units, standardized_by
from engram.home.learned import Learned, Origin
from engram.home.prediction_intervals import Columns, columns_of, outputs_of, targets_as_columns
from engram.home.serving import check_finite, is_settled, plain_module, served_of, settled
from engram.networks.base import Model
from engram.networks.export_modules import Shifted
from engram.networks.layer_units import InUnits
from engram.scoring.tasks import TASKS
from engram.settings.errors import DataError, Refused
from engram.settings.method_for_data import server_side
from engram.wire.tensors import difference


class LearnedNetworks(Learned):
    """The models of a run that trains networks."""

    @property
    def by_task(self) -> bool:
        """Whether each client has a schema of its own, by its task in the data."""
        return self.experiment.partition == "natural"

    @property
    def may_lack_rows(self) -> bool:
        """Whether rows are on nodes alone, or were those of another process."""
        return self.checkpoint.memories is None or self.experiment.source.in_memory

    @cached_property
    def kind(self) -> Kind:
        """Shapes and types of the data's rows."""
        return self._recorded or self.data.kind

    @cached_property
    def data(self) -> FederatedData:
        """The clients' rows.

        Raises:
            DataError: If they cannot be read, or are others: nodes may have had data of their own.
        """
        found, recorded = federated_data(self.experiment), self._recorded
        if self.record.on_nodes:
            alike = recorded is None or recorded._replace(units=Units()) == found.kind
            key = "queries" if self.experiment.protocol == "standard" else ""
            self._check_rows(key, [len(rows) for rows in found.test.rows], alike=alike)
        return found if recorded is None else in_units(found, recorded.units)

    def _check_data(self) -> None:
        _ = self.data

    def _rows_in_words(self, name: str) -> str:
        e, found = self.experiment, super()._rows_in_words(name)
        if found == e.source.described:
            found += f", partition {e.partition}"
        whose = f": rows of client {name}, and others'" if name else f", {e.num_clients} clients"
        return found + whose

    @cached_property
    def network(self) -> Model:
        """The network.

        Raises:
            Refused: If this process does not know it.
        """
        return model_for(self.experiment, self.kind)

    def of_client(self, client: int) -> Self:
        """Returns the run's models with a client's own network, where networks differ by client."""
        e = self.experiment.for_client(client, self.names)
        if e is self.experiment:
            return self
        found = copy(self)
        found.experiment = e
        return found

    def origin(self, client: int | str | None, rows: str = "") -> Origin:
        """Returns the origin of a client's model, or the common one, with its network's name."""
        found = super().origin(client, rows)
        return found._replace(settings=found.settings | {"model": self.experiment.model})

    def network_of(self, client: int) -> Model:
        """Returns the network in a client's units; see ``kind_of``."""
        return model_for(self.experiment, self.kind_of(client))

    def kind_of(self, client: int) -> Kind:
        """Returns the kind of a client's rows, with its own units if it has any.

        Raises:
            Refused: If it has, and its rows are elsewhere.
        """
        if not self.standardizes_by_client:
            return self.kind
        return self.kind._replace(units=own_units(self.experiment, self.rows_of(client), client))

    @property
    def standardizes_by_client(self) -> bool:
        """Whether inputs are standardized by each client's own rows.

        Raises:
            DataError: If that depends on the rows, and they are elsewhere.
        """
        e = self.experiment
        if e.standardize == "auto":
            return e.is_private and standardized_by(e, self.data) == "client"
        return e.standardize == "client"

    @property
    def _keeps(self) -> bool:
        method, start = self.method, self.method.client.start
        received = received_by(method, self.slots, 0)
        found = [method.serve(received, unknown(start), trained) for trained in (True, False)]
        return bool(start) and not (all(map(is_known, found)) and found[0].tuned == found[1].tuned)

    @cached_property
    def method(self) -> Method:
        """The method on the network, without data.

        Raises:
            Refused: If this process does not know the network.
        """
        return server_side(self.experiment, self.kind)[0]

    @cached_property
    def slots(self) -> Slots:
        """The server's slots.

        Raises:
            Refused: If they are another network's, of which this process knows one by the same
                name.
        """
        start, checkpoint = self.method.server.start, self.checkpoint
        there = unflat(checkpoint.state | checkpoint.model, start)
        found: Slots = {slot: x for slot, x in there.items() if slot in start}
        if (wrong := difference(flat(found), flat(start))) is not None:
            name = self.experiment.model
            raise Refused(
                f"{self.record.folder} has learned another network than the one called {name} "
                f"here: {wrong}"
            )
        return found

    def newcomers(self, kept: Slots | None = None) -> Served:
        """Returns the served model of a client outside the run, by default as clients begin."""
        e, number = self.experiment, self.experiment.num_clients
        larger = e.model_copy(update={"num_clients": number + 1})  # of which it is the last client
        method, _, _ = server_side(larger, self.kind)
        slots = over_slots(_longer, self.slots, method.server.start)
        received = received_by(method, slots, number)
        return method.serve(received, method.client.start if kept is None else kept, False)

    @property
    def common(self) -> Served:
        """The network, or the mixture of networks, that all clients share.

        Arrays of a client's own are as they begin.

        Raises:
            Refused: If there are several networks, of which a client's rows choose one.
        """
        found = replace(self.newcomers(), tuned=False, neighbors=None)
        if not is_settled(found):
            raise Refused(
                f"{self.experiment.method} has {len(found.models)} common models, of which a "
                "client's rows choose one: export a client's"
            )
        return found

    def personal(self, client: int) -> Served:
        """Returns a client's served model, chosen and fine-tuned.

        Raises:
            Refused: If its memory is elsewhere, or its rows are and its model is chosen by them or
                fine-tuned on them; or fine-tuning diverges.
        """
        found = settled(self.served(client), lambda: self._trainer_with(client), client)
        check_finite(self.experiment, found, self.called(client))
        return found

    def served(self, client: int) -> Served:
        """Returns a client's served model, as the method says.

        Raises:
            Refused: If its memory is elsewhere.
        """
        if why := (self.record.results or {}).get("left-out", {}).get(self.called(client)):
            raise Refused(f"client {self.called(client)} had no part in the run: {why}")
        e, method = self.experiment, self.method
        received = received_by(method, self.slots, client)
        given = self.network, self._store, received, client
        when = self.checkpoint.server_round + 1
        found = served_of(e, method, *given, before=when, names=self.names)
        if self.tuned:
            if not has_tuned(replace(found, tuned=False)):
                raise Refused(must("method", e.method, "one that serves a network, for tuned"))
            found = replace(found, tuned=True)
        return found

    def split(self, client: int) -> dict[str, RowNumbers]:
        """Returns the numbers of a client's training, validation and test rows; see ``Run``."""
        e, data = self.experiment, self.data
        rows = read_given(e.source, range(e.num_clients)) if e.source.is_given else {}
        # In order: clients' rows one below the other, each one's test rows below the others.
        part = 2 * np.asarray(rows.get("task", 0)) + (np.asarray(rows.get(PART, 0)) == 1)

        def numbers(split: Split | None) -> RowNumbers:
            own = np.empty(0, np.int64) if split is None else np.sort(split.rows[client])
            own = own if split is None or split.given is None else split.given[own]
            return own - np.searchsorted(part, part[own]) if part.ndim else own

        parts = {"train": data.train, "validation": data.validation, "test": data.test}
        return {name: numbers(split) for name, split in parts.items()}

    def arrays_of(self, client: int) -> Params:
        """Returns the parameters of the network that serves a client; see ``Run``.

        Raises:
            Refused: As ``personal``; or there are several networks.
        """
        own = self.of_client(client)
        served = own.personal(client)
        if served.weights is not None:
            several = f"a mixture of {len(served.models)} models"
            raise Refused(f"{self.experiment.method} serves clients by {several}")
        return own.parameters(served, served.models[0].keys())

    def predictions(self, client: int) -> Columns:
        """Returns targets and predictions of a client's test rows, as columns."""
        rows = torch.from_numpy(np.sort(self.data.test.rows[client]))
        (x, y), targets = self.data.test.take(rows, exact=True), TASKS[self.experiment.task].targets
        own = self.of_client(client)
        module = own.module(own.personal(client), own.network_of(client), client)
        outputs, classes = outputs_of(module, x, len(rows)), self.kind.class_names
        return targets_as_columns(targets, y, classes) | columns_of(targets, outputs, classes)

    def rows_of(self, client: int) -> FederatedData:
        """Returns data with the rows that a client's model is made of, too.

        Raises:
            Refused: If they are on its node.
        """
        try:
            return self.data
        except DataError as error:
            if not self.record.on_nodes:
                raise
            raise Refused(
                f"client {self.called(client)} is served by what is made of its rows, which are "
                f"not here ({error}): on its node, engram memory export writes its model"
            ) from error

    def _trainer_with(self, client: int) -> Trainer:
        self.rows_of(client)
        return self._trainer

    @cached_property
    def _trainer(self) -> Trainer:
        return Trainer(self.experiment, self.data, RamStore(), engine="sequential")

    @property
    def shared(self) -> Params:
        """The parameters of the common network, as ``parameters`` returns them.

        Raises:
            Refused: If there are several networks.
        """
        (w, *others) = self.newcomers(unknown(self.method.client.start)).models
        if others:
            count = 1 + len(others)
            raise Refused(f"{self.experiment.method} has {count} common models: export a client's")
        common = replace(self.common, shift=None)
        return self.parameters(common, {n for n, leaf in w.items() if not leaf.isnan().any()})

    def module(self, served: Served, network: Model, client: int) -> nn.Module:
        """Returns the served model as one plain module; see ``plain_module``."""
        targets = TASKS[self.experiment.task].targets
        return plain_module(network, served, targets, lambda: self.rows_of(client), client)

    def parameters(self, served: Served, some: Set[str]) -> Params:
        """Returns a network's parameters by the names that its module has for them.

        Those that are shared between layers stand under each of their names.

        Raises:
            Refused: If the module that predicts with them is another than the network's own.
        """
        network = self.network
        module = self.module(replace(served, neighbors=None), network, 0)
        if isinstance(module, Shifted):
            why = (
                "a bias before the last layer, which has none of its own"
                if module.bias.ndim == 1
                else "a gate before the last layer, which no parameters take up"
            )
            raise Refused(f"{self.experiment.method} has {why}: export the client's model")
        module = module.network if isinstance(module, InUnits) else module
        names = {network.names.get(name, name) for name in some}
        wanted = {id(leaf) for name, leaf in _arrays(module) if name in names}
        return {name: leaf.detach() for name, leaf in _arrays(module) if id(leaf) in wanted}


def _longer(leaf: Tensor, like: Tensor) -> Tensor:
    """Returns clients' rows with those of further ones as they begin, as in ``like``."""
    whole = like.clone()
    whole[tuple(slice(size) for size in leaf.shape)] = leaf  # of pairs, there are two such axes
    return whole


def _arrays(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
