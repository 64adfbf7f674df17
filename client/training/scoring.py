"""How well clients are served: the common model, personalized ones, and those that they keep."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from engram.dense import FIRST, Examples, logits
from engram.meta.fine_tune import fine_tune
from engram.metrics import Metric
from engram.models import Model, dense_loss_of, mean_loss
from engram.models.base import Inputs
from engram.optimizers import AFFINE
from engram.span import make_coordinates
from engram.tasks import task_of
from engram.types import LossFn, Params
from federation.data.federated import FederatedData
from federation.experiment import Experiment
from federation.methods.local import COMMON, KEPT, PERSONALIZED, LocalMethod
from federation.streams import Stream, generator

__all__ = ["Scores", "Scoring", "measure"]

_BLOCK = 2**22  # numbers of query inputs, or of parameters, that are held at once


class Scores(NamedTuple):
    """Scores on query rows, each of shape (clients,).

    Attributes:
        columns: By the names of the method's columns: each metric of the common model, of the
            model after fine-tuning on the support rows, and of the one that the client keeps, as it
            is (LocalMOML's carried memory, pFedMe's theta); NaN for a client without one.
        queries: Number of query rows.
    """

    columns: dict[str, Tensor]
    queries: Tensor

    def part(self, some: slice) -> "Scores":
        """Returns the scores of some of the clients."""
        columns = {name: column[some] for name, column in self.columns.items()}
        return Scores(columns, self.queries[some])


class _Rows(NamedTuple):
    """Test rows of some clients: support (c, shots), queries (c, q), and which of these count."""

    support: Tensor
    queries: Tensor
    counted: Tensor


class Scoring:
    """The protocol by which every algorithm is scored.

    A client's test rows are split once, by seed, into ``adapt-shots`` support rows and query
    rows, which are all others. Personalizing takes ``adapt-steps`` gradient steps on the support
    rows from a fresh copy of the model; the last one is scored.

    Args:
        experiment: The settings.
        network: The network.
        data: The data, of which the test rows are looked at.
        vectorized: Whether to score a block of clients at once; if not, one after the other.
    """

    def __init__(
        self, experiment: Experiment, network: Model, data: FederatedData, *, vectorized: bool
    ) -> None:
        self._experiment = experiment
        self._network = network
        self._test = data.test
        self._vectorized = vectorized
        self._metrics = experiment.of(LocalMethod).metrics(experiment)
        self._dense = vectorized and network.features is None and network.dense_layers > 0
        self._dense &= experiment.adapt_optimizer in AFFINE and FIRST not in network.personal
        task = task_of(experiment.task, experiment.loss)
        # Personalized as it will serve: nothing is dropped, and no statistics are taken of the few.
        loss: LossFn = mean_loss(network._replace(train=None), task)
        if self._dense:
            loss, self._targets = dense_loss_of(task, network.dense_layers, data.outputs)
        self._personalize = fine_tune(
            loss,
            lr=experiment.adapt_lr,
            steps=experiment.adapt_steps,
            optimizer=experiment.adapt_optimizer,
        )

    def scores(
        self,
        model: Params,
        clients: Sequence[int],
        kept: Callable[[int], tuple[Params | None, Params]],
    ) -> Scores:
        """Scores the common model, personalized models, and the clients' memories.

        Args:
            model: The model that clients share.
            clients: Whom to score.
            kept: Returns the model that a client keeps, if it keeps one, and its personal
                parameters.
        """
        size = sum(leaf.numel() for leaf in model.values())
        inputs = self._row * max(len(self._test.rows[c]) for c in clients)
        block = max(1, _BLOCK // max(inputs, size)) if self._vectorized else 1
        parts = [
            self._block(model, some, [kept(client) for client in some])
            for some in (clients[at : at + block] for at in range(0, len(clients), block))
        ]
        columns = {
            name: torch.cat([part.columns[name] for part in parts]).cpu()
            for name in parts[0].columns
        }
        return Scores(columns, torch.cat([part.queries for part in parts]).cpu())

    @property
    def _row(self) -> int:
        """Numbers that a row takes: itself, or what layers before the dense ones make of it."""
        return max(self._test.numbers, 0 if self._dense else self._network.activations)

    def personalized(self, model: Params, client: int) -> Params:
        """Returns a client's model after fine-tuning on its support rows, as it is scored."""
        if self._dense:
            raise ValueError("engine must be sequential: models are personalized one by one")
        return self._personalize(model, _of(self._test.take(self._split([client]).support), 0))

    def _block(
        self,
        model: Params,
        clients: Sequence[int],
        kept: Sequence[tuple[Params | None, Params]],
    ) -> Scores:
        rows, memories = self._split(clients), [memory for memory, _ in kept]
        own = {name: torch.stack([mine[name] for _, mine in kept]) for name in kept[0][1]}
        serve: dict[str, Callable[[Inputs], Tensor]] = {
            COMMON: partial(self._common, model, own),
            PERSONALIZED: self._tuned(model, own, rows),
        }
        have = [i for i, kept in enumerate(memories) if kept is not None]
        if have:
            found = [memory for memory in memories if memory is not None]
            names = [*model, *own]
            stack = {name: torch.stack([memory[name] for memory in found]) for name in names}
            serve[KEPT] = lambda x: self._for_each(self._network.apply)(stack, _of(x, have))
        outputs: dict[str, list[Tensor]] = {which: [] for which in serve}
        targets = []
        # One client may have more rows than fit into memory at once.
        for queries in torch.split(rows.queries, max(1, _BLOCK // (self._row * len(clients))), 1):
            x, y = self._test.take(queries)
            targets.append(y)
            for which, served in serve.items():
                outputs[which].append(served(x))
        y = torch.cat(targets, dim=1)
        said = {which: torch.cat(parts, dim=1) for which, parts in outputs.items()}
        columns = self._measured(COMMON, said[COMMON], y, rows.counted)
        columns |= self._measured(PERSONALIZED, said[PERSONALIZED], y, rows.counted)
        lacking = y.new_full((len(clients),), torch.nan, dtype=torch.float32)
        columns |= {metric.name + KEPT: lacking.clone() for metric in self._metrics}
        if have:
            for name, values in self._measured(
                KEPT, said[KEPT], y[have], rows.counted[have]
            ).items():
                columns[name][have] = values
        return Scores(columns, rows.counted.sum(1))

    def _common(self, model: Params, own: Params, x: Inputs) -> Tensor:
        """Returns the outputs (c, q, ...) before personalization, on queries x (c, q, ...)."""
        if own:
            serve = self._for_each(lambda mine, some: self._network.apply(model | mine, some))
            outputs: Tensor = serve(own, x)
            return outputs
        shape = tree_leaves(x)[0].shape[:2]
        flat = tree_map(lambda leaf: leaf.flatten(0, 1), x)
        return _unflattened(self._network.apply(model, flat), shape)

    def _measured(
        self, which: str, outputs: Tensor, y: Tensor, counted: Tensor
    ) -> dict[str, Tensor]:
        """Returns the columns of one of the models that clients are served by."""
        return {m.name + which: measure(m, outputs, y, counted) for m in self._metrics}

    def _split(self, clients: Sequence[int]) -> _Rows:
        """Splits test rows into support and queries; these are padded to the same number."""
        shots = self._experiment.adapt_shots
        shuffled = [
            generator(self._experiment.seed, Stream.SUPPORT, c).permutation(self._test.rows[c])
            for c in clients
        ]
        width = max(len(rows) for rows in shuffled) - shots
        counted = np.arange(width) < np.array([[len(rows) - shots] for rows in shuffled])
        queries = [
            np.pad(rows[shots:], (0, width + shots - len(rows)), mode="edge") for rows in shuffled
        ]
        arrays = np.stack([rows[:shots] for rows in shuffled]), np.stack(queries), counted
        return _Rows(*(torch.from_numpy(array).to(self._test.y.device) for array in arrays))

    def _tuned(self, model: Params, own: Params, rows: _Rows) -> Callable[[Inputs], Tensor]:
        """Returns what gives the personalized models' outputs (c, q, ...) on x (c, q, ...)."""
        if self._dense:
            return self._tuned_dense(model, own, rows.support)
        batch = self._test.take(rows.support)
        tuned = self._for_each(lambda mine, some: self._personalize(model | mine, some))(own, batch)
        return lambda x: self._for_each(self._network.apply)(tuned, x)

    def _for_each(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns what applies a function to each client's arguments, which are stacked."""
        if self._vectorized:
            return vmap(function)

        def in_turn(*arguments: Any) -> Any:
            found = [function(*_of(arguments, i)) for i in range(len(tree_leaves(arguments)[0]))]
            return tree_map(lambda *leaves: torch.stack(leaves), *found)

        return in_turn

    def _tuned_dense(
        self, model: Params, own: Params, support: Tensor
    ) -> Callable[[Inputs], Tensor]:
        coordinates = make_coordinates(model[FIRST], *support.shape)
        _, y = self._test.take(support, out=coordinates.drawn)
        rows = coordinates.see(0, support.shape[1])
        w = {name: leaf.expand(len(support), *leaf.shape) for name, leaf in model.items()} | own
        w[FIRST] = rows.fit(coordinates.origin())
        tuned = self._personalize(w, Examples(rows, self._targets(y)))
        layers = self._network.dense_layers
        return lambda x: logits(tuned, coordinates.see_others(x.flatten(2)), layers)


def _of(stacked: Any, some: Any) -> Any:
    """Returns some entries, or one, of each of stacked tensors."""
    return tree_map(lambda leaf: leaf[some], stacked)


def _unflattened(outputs: Tensor, shape: torch.Size) -> Tensor:
    return outputs.view(*shape, *outputs.shape[1:])


def measure(metric: Metric, outputs: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
    """Returns a metric of each client, shape (c,).

    Args:
        metric: The metric.
        outputs: Of the clients' models, shape (c, q, ...).
        targets: Shape (c, q, ...).
        counted: Which of the q rows count, shape (c, q); at least one of each client.
    """
    finite = outputs.isfinite().reshape(*counted.shape, -1).all(dim=-1)
    if metric.by_row:
        rows = torch.as_tensor(metric.score(outputs.flatten(0, 1), targets.flatten(0, 1)))
        values = torch.where(finite, rows.view_as(finite), metric.worst)
        # Values of padding are set to zero, not multiplied by it: they may be infinite.
        return torch.where(counted, values, 0.0).sum(1) / counted.sum(1)
    each = [
        metric.score(out[some], target[some]) if whole[some].all() else metric.worst
        for out, target, some, whole in zip(outputs, targets, counted, finite, strict=True)
    ]
    return outputs.new_tensor([float(value) for value in each])
