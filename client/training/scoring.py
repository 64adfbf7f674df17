"""Scores of clients: of the common model, of personalized models, and of kept models."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from client.training.rows import Queries, Support, padded
from engram.checks import must
from engram.dense import FIRST, Examples, logits
from engram.derivatives import by_autograd
from engram.meta.fine_tune import fine_tune
from engram.metrics import Metric, fitted
from engram.mixtures import mixture
from engram.models import Model, dense_loss_of, mean_loss, represented, standardized_loss
from engram.models.base import Inputs, Outputs
from engram.optimizers import AFFINE
from engram.span import make_coordinates
from engram.tasks import Task, task_of
from engram.types import Batch, Candidates, LossFn, Params, Recall
from federation.data.federated import FederatedData, Split
from federation.data.partitions import RowNumbers
from federation.errors import Refused
from federation.experiment import Experiment
from federation.methods.local import COMMON, KEPT, PERSONALIZED, VALIDATION, LocalMethod
from federation.streams import Stream, generator

__all__ = ["NoScore", "Scorer", "Scores", "measure"]

Named = TypeVar("Named", bound=Hashable)

_BLOCK = 2**22  # most numbers, of query inputs or of parameters, that are held at once


class NoScore(ValueError):
    """A metric's value is something else than a number."""


class Scores(NamedTuple):
    """Scores on query rows, each of shape (clients,).

    Attributes:
        columns: Metric columns by name: of the common model, of the model after fine-tuning, and
            of the model that a client keeps (or of the common one together with the client's
            training rows); NaN for a client that keeps none.
        queries: Numbers of test rows that were scored.
    """

    columns: dict[str, Tensor]
    queries: Tensor

    def part(self, some: slice) -> "Scores":
        """Returns the scores of some of the clients."""
        columns = {name: column[some] for name, column in self.columns.items()}
        return Scores(columns, self.queries[some])


class Scorer:
    """The protocol by which every algorithm is scored.

    Fine-tuning takes ``adapt-steps`` gradient steps from a fresh copy of the model; the last one is
    scored. Under the ``standard`` protocol each step is on ``batch-size`` training rows of the
    client, drawn by the seed and the client, or on all of them if they are no more; models are
    scored on all test rows, and on the rows held out for validation. Under ``few-shot`` a client's
    test rows are split once, by seed, into ``adapt-shots`` support rows, all of which each step is
    on, and query rows, which are the rest.

    Args:
        experiment: The settings.
        network: The network.
        data: The data, with inputs as the network takes them.
        vectorized: Whether to score a block of clients at once; if not, one after the other.
    """

    def __init__(
        self, experiment: Experiment, network: Model, data: FederatedData, *, vectorized: bool
    ) -> None:
        self._experiment = experiment
        self._network = network
        self._data = data
        self._vectorized = vectorized
        self._metrics = experiment.of(LocalMethod).metrics(experiment)
        self._recall = experiment.of(LocalMethod).recall()
        self._dense = vectorized and network.features is None and network.dense_layers > 0
        self._dense &= experiment.adapt_optimizer in AFFINE
        self._dense &= FIRST not in network.personal | network.tailored
        self._task = task_of(experiment.task, experiment.loss)
        self._standard = data.units.targets
        self._personalize = self._fine_tuning(self._task)

    def _fine_tuning(self, task: Task) -> Callable[..., Params]:
        # Fine-tuning sees the network as it serves: without dropout and new batch statistics.
        e, network, standard = self._experiment, self._network, self._standard
        learned = standardized_loss(task, standard)
        loss: LossFn = mean_loss(network._replace(train=None), learned)
        if not network.vectorizes:  # packed sequences, for one, have no rule in torch.func
            loss = by_autograd(loss)
        if self._dense:
            shape = network.dense_layers, self._data.outputs
            loss, self._targets = dense_loss_of(task, *shape, standard)
        return fine_tune(loss, lr=e.adapt_lr, steps=e.adapt_steps, optimizer=e.adapt_optimizer)

    def scores(
        self,
        model: Params,
        clients: Sequence[int],
        kept: Callable[[int], tuple[Candidates | None, Params]],
    ) -> Scores:
        """Scores the common model, personalized models, and the clients' memories.

        Args:
            model: The common model.
            clients: The clients to score.
            kept: ``client -> (models, own)``: the models that a client keeps, None if it keeps
                none, and its personal parameters.
        """
        size = sum(leaf.numel() for leaf in model.values())
        alike: dict[int, list[int]] = {}  # clients that fine-tune on as many rows
        for client in clients:
            alike.setdefault(self._drawn(client), []).append(client)
        splits = [split for split in (self._data.test, self._data.validation) if split]
        by_rows = self._recall is not None or (self._network.candidates and not self._few_shot)
        splits += [self._data.train] if by_rows else []
        most = max(len(split.rows[c]) for split in splits for c in clients)
        blocks = []
        for drawn, some in alike.items():
            inputs = self._row * max(most, drawn)
            block = max(1, _BLOCK // max(inputs, size)) if self._vectorized else 1
            blocks += [some[at : at + block] for at in range(0, len(some), block)]
        parts = [self._block(model, some, [kept(client) for client in some]) for some in blocks]
        place = {client: i for i, client in enumerate(chain(*blocks))}
        order = [place[client] for client in clients]
        columns = {
            name: torch.cat([part.columns[name] for part in parts])[order].cpu()
            for name in parts[0].columns
        }
        return Scores(columns, torch.cat([part.queries for part in parts])[order].cpu())

    @property
    def _row(self) -> int:
        """The most numbers that a row takes: its inputs, or a layer's outputs."""
        return max(self._data.test.numbers, 0 if self._dense else self._network.activations)

    def _drawn(self, client: int) -> int:
        """Returns how many rows a client fine-tunes on."""
        e = self._experiment
        return e.adapt_shots if self._few_shot else max(1, e.adapt_steps) * self._batch(client)

    def _batch(self, client: int) -> int:
        """Returns how many rows each step of a client's fine-tuning is on."""
        if self._few_shot:
            return self._experiment.adapt_shots
        return min(self._experiment.batch_size, len(self._data.train.rows[client]))

    @property
    def _few_shot(self) -> bool:
        return self._experiment.protocol == "few-shot"

    def personalized(self, model: Params, client: int) -> Params:
        """Returns a client's model after fine-tuning, as it is scored."""
        if self._dense:
            raise ValueError("engine must be sequential: models are personalized one by one")
        if not self._drawn(client) or (self._few_shot and not len(self._data.test.rows[client])):
            called = self._data.names.get(client, client)
            raise Refused(f"client {called} has no rows to fine-tune on")
        support = self._support([client])
        return self._tunes([client])(model, *(_of(batch, 0) for batch in support.batches()))

    def _tunes(self, clients: Sequence[int]) -> Callable[..., Params]:
        """Returns what fine-tunes: a single client by its name, if the loss wants that."""
        if not self._task.named:
            return self._personalize
        (name,) = self._called(clients)
        return self._fine_tuning(self._task.of(name))

    def _called(self, clients: Sequence[int]) -> list[str | int]:
        """Returns the clients' names, or their numbers where they have none."""
        return [self._data.names.get(client, client) for client in clients]

    def _block(
        self,
        model: Params,
        clients: Sequence[int],
        kept: Sequence[tuple[Candidates | None, Params]],
    ) -> Scores:
        own = {name: torch.stack([mine[name] for _, mine in kept]) for name in kept[0][1]}
        serve: dict[str, Callable[[Inputs], Outputs]] = {
            COMMON: partial(self._common, model, own),
            PERSONALIZED: self._tuned(model, own, clients),
        }
        have = [i for i, (models, _) in enumerate(kept) if models is not None]
        if have:
            found = [models for models, _ in kept if models is not None]
            answer = self._kept([clients[i] for i in have], found, [*model, *own])
            serve[KEPT] = lambda x: answer(_of(x, have))
        if self._recall is not None:
            have = list(range(len(clients)))
            serve[KEPT] = self._recalling(self._recall, model, own, clients)
        queries = self.queries(clients)
        columns = self._columns(serve, queries, have, clients)
        if self._data.validation is not None:
            held_out = padded(self._data.validation, self._data.validation.rows, clients)
            scored = self._columns(serve, held_out, have, clients)
            columns |= {VALIDATION + name: values for name, values in scored.items()}
        return Scores(columns, queries.counted.sum(1))

    def _columns(
        self,
        serve: Mapping[str, Callable[[Inputs], Outputs]],
        queries: Queries,
        have: list[int],
        clients: Sequence[int],
    ) -> dict[str, Tensor]:
        """Returns the metric columns of each model; only clients in ``have`` have a kept model.

        Args:
            serve: For each model, ``inputs (c, q, ...) -> outputs (c, q, ...)``.
            queries: The rows to score.
            have: Positions of the clients that keep a model.
            clients: The clients.
        """
        count, counted, names = len(queries.rows), queries.counted, self._called(clients)
        said, y = self._answers(serve, queries)
        columns = self._measured(COMMON, said[COMMON], y, counted, names)
        columns |= self._measured(PERSONALIZED, said[PERSONALIZED], y, counted, names)
        lacking = y.new_full((count,), torch.nan, dtype=torch.float32)
        columns |= {metric.name + KEPT: lacking.clone() for metric in self._metrics}
        if have:
            theirs = [names[i] for i in have]
            found = self._measured(KEPT, said[KEPT], y[have], counted[have], theirs)
            for name, values in found.items():
                columns[name][have] = values
        return columns

    def _answers(
        self, serve: Mapping[Named, Callable[[Inputs], Outputs]], queries: Queries
    ) -> tuple[dict[Named, Outputs], Tensor]:
        """Returns the outputs (c, q, ...) of each model, and the targets (c, q, ...)."""
        outputs: dict[Named, list[Outputs]] = {which: [] for which in serve}
        targets = []
        for rows in self._in_parts(queries.rows):
            x, y = queries.split.take(rows)
            targets.append(y)
            for which, served in serve.items():
                outputs[which].append(served(x))
        said = {which: tree_map(_joined, *parts) for which, parts in outputs.items()}
        return said, torch.cat(targets, dim=1)

    def _kept(
        self, clients: Sequence[int], kept: Sequence[Candidates], names: Sequence[str]
    ) -> Callable[[Inputs], Outputs]:
        """Returns ``inputs -> outputs``, (c, q, ...), of the models that clients keep."""
        apply, weights = self._for_each(self._network.apply), [some.weights for some in kept]
        ranks = zip(*(some.models for some in kept), strict=True)
        stacks = [_stacked(models, names) for models in ranks]
        shares = [some for some in weights if some is not None]
        if shares:
            w = torch.stack(shares)
            return lambda x: mixture(self._task.targets, [apply(stack, x) for stack in stacks], w)
        return partial(apply, self.least(clients, stacks))

    def least(self, clients: Sequence[int], stacks: Sequence[Params]) -> Params:
        """Returns for each client the candidate with the least loss on its training rows.

        Under few-shot, its support rows count instead.

        Args:
            clients: The clients.
            stacks: Each candidate's parameters, with a leading client axis.
        """
        if len(stacks) == 1:
            return stacks[0]
        apply, loss = self._for_each(self._network.apply), self._metrics[-1]
        known = self._known(clients)
        said, y = self._answers({i: partial(apply, w) for i, w in enumerate(stacks)}, known)
        names = self._called(clients)
        losses = [measure(loss, outputs, y, known.counted, names) for outputs in said.values()]
        best, each = torch.stack(losses).argmin(0), torch.arange(len(clients))
        return {n: torch.stack([w[n] for w in stacks])[best, each.to(best)] for n in stacks[0]}

    def _known(self, clients: Sequence[int]) -> Queries:
        """Returns the rows that candidates are compared on; see ``least``."""
        if not self._few_shot:
            return padded(self._data.train, self._data.train.rows, clients)
        split, rows, _ = self._support(clients)
        return Queries(split, rows, torch.ones_like(rows, dtype=torch.bool))

    def _common(self, model: Params, own: Params, x: Inputs) -> Outputs:
        """Returns the outputs (c, q, ...) before personalization, on queries x (c, q, ...)."""
        if own:
            serve = self._for_each(lambda mine, some: self._network.apply(model | mine, some))
            outputs: Outputs = serve(own, x)
            return outputs
        shape, flat = tree_leaves(x)[0].shape[:2], self._network.apply(model, _flat(x))
        rows: Outputs = tree_map(lambda leaf: leaf.view(*shape, *leaf.shape[1:]), flat)
        return rows

    def _recalling(
        self, recall: Recall, model: Params, own: Params, clients: Sequence[int]
    ) -> Callable[[Inputs], Tensor]:
        """Returns ``inputs -> outputs`` of the common model, which also uses training rows."""

        def one(mine: Params, x: Inputs) -> tuple[Tensor, Tensor]:
            return represented(self._network)(model | mine, x)

        represent, train = self._for_each(one), self._data.train
        memory = padded(train, train.rows, clients)
        said, y = self._answers({KEPT: lambda x: represent(own, x)[1]}, memory)
        theirs = said[KEPT]

        def served(x: Inputs) -> Tensor:
            outputs, z = represent(own, x)
            return recall(outputs, z, theirs, y, memory.counted)

        return served

    def _in_parts(self, rows: Tensor) -> Sequence[Tensor]:
        """Splits rows (c, n) into parts: a client may have more than fit into memory at once."""
        return torch.split(rows, max(1, _BLOCK // (self._row * len(rows))), 1)

    def _measured(
        self,
        which: str,
        outputs: Outputs,
        y: Tensor,
        counted: Tensor,
        names: Sequence[str | int],
    ) -> dict[str, Tensor]:
        """Returns the metric columns of one of the models."""
        return {m.name + which: measure(m, outputs, y, counted, names) for m in self._metrics}

    def queries(self, clients: Sequence[int]) -> Queries:
        """Returns the test rows that clients are scored on."""
        test = self._data.test
        return padded(test, {c: query_rows(self._experiment, test, c) for c in clients}, clients)

    def _support(self, clients: Sequence[int]) -> Support:
        """Returns the rows that clients fine-tune on, which must be as many for each of them."""
        e, count, size = self._experiment, self._drawn(clients[0]), self._batch(clients[0])
        if self._few_shot:
            split = self._data.test
            rows = [_shuffled(e, split, client)[:count] for client in clients]
        else:
            split = self._data.train
            rows = [_tuned_on(e, client, split.rows[client], count) for client in clients]
        return Support(split, torch.from_numpy(np.stack(rows)).to(split.y.device), size)

    def _tuned(
        self, model: Params, own: Params, clients: Sequence[int]
    ) -> Callable[[Inputs], Outputs]:
        """Returns ``inputs -> outputs``, (c, q, ...), of the fine-tuned models."""
        support = self._support(clients)
        if self._dense:
            return self._tuned_dense(model, own, support)
        personalize = self._tunes(clients)

        def tune(mine: Params, *batches: Batch) -> Params:
            return personalize(model | mine, *batches)

        tuned = self._for_each(tune)(own, *support.batches())
        return lambda x: self._for_each(self._network.apply)(tuned, x)

    def _for_each(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that applies ``function`` to each client's stacked arguments."""
        if self._vectorized:
            return vmap(function)

        def in_turn(*arguments: Any) -> Any:
            found = [function(*_of(arguments, i)) for i in range(len(tree_leaves(arguments)[0]))]
            return tree_map(lambda *leaves: torch.stack(leaves), *found)

        return in_turn

    def _tuned_dense(
        self, model: Params, own: Params, support: Support
    ) -> Callable[[Inputs], Tensor]:
        count, drawn = support.rows.shape
        coordinates = make_coordinates(model[FIRST], count, drawn)
        _, y = support.split.take(support.rows, out=coordinates.drawn)
        rows, targets = coordinates.see(0, drawn), self._targets(y)
        w = {name: leaf.expand(count, *leaf.shape) for name, leaf in model.items()} | own
        w[FIRST] = rows.fit(coordinates.origin())
        batches = (Examples(rows.part(*at), targets[:, slice(*at)]) for at in support.edges)
        tuned = self._personalize(w, *batches)
        layers = self._network.dense_layers
        standard = self._standard

        def outputs(x: Tensor) -> Tensor:
            raw = logits(tuned, coordinates.see_others(x.flatten(2)), layers)
            return standard.restored(raw) if standard else raw

        return outputs


def query_rows(experiment: Experiment, test: Split, client: int) -> RowNumbers:
    """Returns the test rows on which a client is scored: but for support rows, all of them."""
    if experiment.protocol != "few-shot":
        return test.rows[client]
    return _shuffled(experiment, test, client)[experiment.adapt_shots :]


def _shuffled(experiment: Experiment, test: Split, client: int) -> RowNumbers:
    """Returns a client's test rows in random order: support rows first."""
    rng = generator(experiment.seed, Stream.SUPPORT, client)
    return rng.permutation(test.rows[client])


def _tuned_on(e: Experiment, client: int, own: RowNumbers, count: int) -> RowNumbers:
    """Returns ``count`` rows to fine-tune on: all in turn, if a batch has room for all of them."""
    if len(own) <= e.batch_size:
        return np.tile(own, count // len(own))
    return own[generator(e.seed, Stream.FINE_TUNING, client).integers(len(own), size=count)]


def _stacked(models: Sequence[Params], names: Sequence[str]) -> Params:
    return {name: torch.stack([model[name] for model in models]) for name in names}


def _of(stacked: Any, some: Any) -> Any:
    """Indexes the leading axis of each tensor in a tree."""
    return tree_map(lambda leaf: leaf[some], stacked)


def _joined(*parts: Tensor) -> Tensor:
    return torch.cat(parts, dim=1)


def _flat(stacked: Any) -> Any:
    """Returns the rows of all clients, (c q, ...), for (c, q, ...)."""
    return tree_map(lambda leaf: leaf.flatten(0, 1), stacked)


def measure(
    metric: Metric,
    outputs: Outputs,
    targets: Tensor,
    counted: Tensor,
    names: Sequence[str | int] = (),
) -> Tensor:
    """Returns a metric of each client, shape (c,).

    Args:
        metric: The metric.
        outputs: Of the clients' models, shape (c, q, ...).
        targets: Shape (c, q, ...).
        counted: Which of the q rows are no padding, shape (c, q); at least one for each client.
        names: What clients are called; for a metric that wants to know it.

    Raises:
        NoScore: If the metric is not one number, or one for each row, as it should be.
    """
    finite = torch.stack(
        [x.isfinite().reshape(*counted.shape, -1).all(-1) for x in tree_leaves(outputs)]
    ).all(0)
    if metric.by_row and not metric.named:
        y = targets.flatten(0, 1)
        rows = _each_row(metric, fitted(_flat(outputs), y), y)
        values = torch.where(finite, rows.view_as(finite), metric.worst)
        # Values of padding are set to zero, not multiplied by it: they may be infinite.
        return torch.where(counted, values, 0.0).sum(1) / counted.sum(1)
    own = [metric.of(name) for name in names] if metric.named else [metric] * len(targets)
    each = [
        _one_number(metric, _of(_of(outputs, i), some), targets[i][some])
        if finite[i][some].all()
        else metric.worst
        for i, (metric, some) in enumerate(zip(own, counted, strict=True))
    ]
    return torch.tensor(each, dtype=torch.float32, device=targets.device)


def _each_row(metric: Metric, outputs: Outputs, targets: Tensor) -> Tensor:
    rows = torch.as_tensor(metric.score(outputs, targets))
    expected = f"one number for each of {len(targets)} rows"
    if rows.shape != (len(targets),):
        raise NoScore(must(f"metric {metric.name}", tuple(rows.shape), expected))
    return rows


def _one_number(metric: Metric, outputs: Outputs, targets: Tensor) -> float:
    outputs = fitted(outputs, targets)
    if metric.by_row:
        return float(_each_row(metric, outputs, targets).double().mean())
    value = metric.score(outputs, targets)
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # as torch, numpy and Python say it
        found = tuple(getattr(value, "shape", ())) or type(value).__name__
        expected = "one number for the rows of a client"
        raise NoScore(must(f"metric {metric.name}", found, expected)) from error
