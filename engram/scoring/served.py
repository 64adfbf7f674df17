"""The models that serve clients, as they are scored: chosen by loss, fine-tuned, or mixed."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from engram.cohort.dense_gradients import FIRST, Examples, logits
from engram.cohort.span_coordinates import make_coordinates
from engram.cohort.trainer.ways import Learner
from engram.core.derivatives import by_autograd
from engram.core.method import Neighbors, Served, Slots
from engram.core.method_shapes import Shapes
from engram.core.slot_optimizers import optimizer_of
from engram.core.slots import has_common, has_tuned, pick
from engram.core.tree import repeated, select, stacked
from engram.core.types import Batch, LossFn, Params
from engram.data.federated import FederatedData
from engram.networks.base import Inputs, Outputs
from engram.networks.layer_units import converted
from engram.networks.losses import dense_loss_of, mean_loss
from engram.scoring.mixtures import mixture, with_votes
from engram.scoring.query_rows import Queries, Support, padded, shuffled, tuned_on
from engram.scoring.score_columns import COMMON, TUNED
from engram.scoring.score_metrics import flattened, measure
from engram.scoring.tasks import Task
from engram.settings.errors import Refused

if TYPE_CHECKING:
    from engram.settings.experiment import Experiment

Named = TypeVar("Named", bound=Hashable)
Answer = Callable[[Inputs], Outputs]
"""``inputs (c, q, ...) -> outputs (c, q, ...)``, of the models of c clients."""

SHIFT: Final = "shift of the representation"
"""Name of a served model's shift among its parameters, where it is fine-tuned with them."""

BLOCK: Final = 2**22
"""Largest count of numbers, of query inputs or of parameters, that are held at once."""


class ServedModels:
    """The models by which clients are served, by one protocol for every method.

    Fine-tuning takes ``adapt-steps`` gradient steps from a fresh copy of the model. Under the
    ``standard`` protocol each step is on ``batch-size`` training rows of the client, drawn by the
    seed and the client, or on all of them if they are no more. Under ``few-shot`` a client's test
    rows are split once, by seed, into ``adapt-shots`` support rows, all of which each step is on,
    and query rows, which are the rest. With ``adapt-part`` ``lp-ft`` the first half of the steps,
    rounded up, moves the last layer alone (Kumar et al., ICLR 2022); with ``head``, all do.

    Args:
        experiment: The settings.
        learner: The method on its network.
        data: The data, with inputs as the network takes them.
        task: The task.
        shapes: The slots of a client.
        vectorized: Whether a block of clients is scored at once, or one after the other.

    Attributes:
        experiment, learner, data, vectorized: As given.
        metrics: The metrics that they are scored by.
        suffixes: Suffixes of the models that are scored, as ``COMMON``; empty for those that serve.
    """

    def __init__(
        self,
        experiment: "Experiment",
        learner: Learner,
        data: FederatedData,
        task: Task,
        shapes: Shapes,
        *,
        vectorized: bool,
    ) -> None:
        self.experiment, self.learner, self.data, self._task = experiment, learner, data, task
        self._network, self._standard = learner.model, learner.standard
        self._method = learner.method(task)
        self.vectorized = vectorized
        self.metrics = experiment.network.metrics(experiment)
        served = shapes.served
        self._common, self._tuned = has_common(shapes.common, served), has_tuned(served)
        self._dense = vectorized and self._network.features is None
        affine = optimizer_of("sgd").affine
        self._dense &= self._network.dense_layers > 0 and affine
        self._dense &= served.shift is None and served.neighbors is None
        self._personalize = self._fine_tuning(task)
        others = {COMMON: self._common, TUNED: self._tuned}
        self.suffixes = ("", *(which for which, there in others.items() if there))

    def _fine_tuning(self, task: Task) -> Callable[..., Params]:
        # Fine-tuning sees the network as it serves: without dropout and new batch statistics.
        e, network = self.experiment, self._network
        learned = converted(task, self._standard and self._standard.scaled)
        loss: LossFn = mean_loss(network._replace(train=None, apply=self._apply), learned)
        optimizer = optimizer_of("sgd")
        if self._dense:
            shape = network.dense_layers, self.data.outputs
            by_hand, self._targets = dense_loss_of(task, *shape, self._standard)
            gradient = by_hand.gradient
        elif network.vectorizes:
            gradient = torch.func.grad(loss)
        else:  # packed sequences, for one, have no rule in torch.func
            gradient = by_autograd(loss).gradient

        steps, head = e.adapt_steps, self.learner.network.head
        probing = {"all": 0, "head": steps, "lp-ft": steps - steps // 2}[e.adapt_part]

        def personalize(w: Params, *batches: Batch) -> Params:
            state = optimizer.init(w)
            for number in range(steps):
                d = gradient(w, batches[number % len(batches)])
                d = pick(d, head) if number < probing else d
                w, state = optimizer.update(w, d, state, e.adapt_lr)
            return w

        return personalize

    def settled(self, served: Served, client: int) -> Served:
        """Returns the served model as it is scored: chosen by loss, fine-tuned if ``tuned``."""
        if served.weights is not None:
            return served
        stacks = [{n: leaf[None] for n, leaf in model.items()} for model in served.models]
        w = select(self.least([client], stacks), 0) | _shift_of(served)
        w = self._personalized(w, client) if served.tuned else w
        shift = w.pop(SHIFT, None)
        return replace(served, models=(w,), shift=shift, tuned=False)

    def of(
        self, common: Slots, own: Slots, kept: Slots, trained: bool, clients: Sequence[int]
    ) -> dict[str, Answer]:
        """Returns the models that are scored, by their suffix to a metric's name."""
        found: dict[str, Answer] = {}
        if self._common:
            found[COMMON] = partial(self._alike, common["model"])
        alike = not own and not tree_leaves(kept)  # all clients are served by the same
        if alike:
            served = self._method.serve(common, kept, trained)
            if len(served.models) == 1 and self._dense and (served.tuned or self._common):
                tuned = self._after_tuning(served.models[0], clients, alike=True)
                return found | ({"": tuned} if served.tuned else {"": found[COMMON], TUNED: tuned})
            served = repeated(served, len(clients))
        else:
            serve = self._for_each(
                lambda mine, keeps: self._method.serve(common | mine, keeps, trained)
            )
            served = serve(own, kept)
        if served.weights is not None:
            apply, pi = self._for_each(self._apply), served.weights
            return found | {
                "": lambda x: mixture(
                    self._task.targets, [apply(model, x) for model in served.models], pi
                )
            }
        w, votes = self.least(clients, served.models) | _shift_of(served), served.neighbors
        if votes is not None:
            w = self._tuned_models(w, clients) if served.tuned else w
            return found | {"": self._voting(w, votes, clients)}
        if served.tuned:
            return found | {"": self._after_tuning(w, clients)}
        found[""] = found[COMMON] if alike and self._common else self._applied(w)
        return found | ({TUNED: self._after_tuning(w, clients)} if self._tuned else {})

    def _alike(self, model: Params, x: Inputs) -> Outputs:
        """Returns the outputs (c, q, ...) of one model, on queries x (c, q, ...)."""
        shape, flat = tree_leaves(x)[0].shape[:2], self._network.apply(model, flattened(x))
        rows: Outputs = tree_map(lambda leaf: leaf.view(*shape, *leaf.shape[1:]), flat)
        return rows

    def _applied(self, w: Params) -> Answer:
        return partial(self._for_each(self._apply), w)

    def _apply(self, w: Params, x: Inputs) -> Outputs:
        return self._represent(w, x)[0] if SHIFT in w else self._network.apply(w, x)

    def _represent(self, w: Params, x: Inputs) -> tuple[Outputs, Tensor]:
        represent, shift = self._network.represent, w.get(SHIFT)
        assert represent is not None  # for mypy: the method asks for it
        model = {name: leaf for name, leaf in w.items() if name != SHIFT}
        found: tuple[Outputs, Tensor] = represent(model, x, None, shift, False)
        return found

    def _voting(self, w: Params, votes: Neighbors, clients: Sequence[int]) -> Answer:
        train = self.data.train
        memory = padded(train, train.rows, clients)
        represented = self._for_each(self._represent)
        said, y = self.answers({0: lambda x: represented(w, x)[1]}, memory)

        def served(x: Inputs) -> Tensor:
            outputs, z = represented(w, x)
            return with_votes(votes, outputs, z, said[0], y, memory.counted)

        return served

    def least(self, clients: Sequence[int], stacks: Sequence[Params]) -> Params:
        """Returns for each client the model with the least loss on its training rows.

        Under few-shot, losses are on its support rows.
        """
        if len(stacks) == 1:
            return stacks[0]
        apply, loss = self._for_each(self._apply), self.metrics[-1]
        known = self._known(clients)
        said, y = self.answers({i: partial(apply, w) for i, w in enumerate(stacks)}, known)
        losses = [measure(loss, outputs, y, known.counted) for outputs in said.values()]
        best, each = torch.stack(losses).argmin(0), torch.arange(len(clients))
        return {n: torch.stack([w[n] for w in stacks])[best, each.to(best)] for n in stacks[0]}

    def _known(self, clients: Sequence[int]) -> Queries:
        if not self._few_shot:
            return padded(self.data.train, self.data.train.rows, clients)
        split, rows, _ = self._support(clients)
        return Queries(split, rows, torch.ones_like(rows, dtype=torch.bool))

    def _personalized(self, model: Params, client: int) -> Params:
        if self._dense:
            raise ValueError("engine must be sequential: models are personalized one by one")
        if not self.drawn(client) or (self._few_shot and not len(self.data.test.rows[client])):
            called = self.data.names.get(client, client)
            raise Refused(f"client {called} has no rows to fine-tune on")
        support = self._support([client])
        return self._personalize(model, *(select(batch, 0) for batch in support.batches()))

    def drawn(self, client: int) -> int:
        """Returns the number of rows that a client's fine-tuning draws."""
        e = self.experiment
        return e.adapt_shots if self._few_shot else max(1, e.adapt_steps) * self._batch(client)

    def _batch(self, client: int) -> int:
        if self._few_shot:
            return self.experiment.adapt_shots
        return min(self.experiment.batch_size, len(self.data.train.rows[client]))

    @property
    def _few_shot(self) -> bool:
        return self.experiment.protocol == "few-shot"

    @property
    def row(self) -> int:
        """Largest count of numbers in a row's inputs or a layer's outputs."""
        return max(self.data.test.numbers, 0 if self._dense else self._network.activations)

    def _after_tuning(self, w: Params, clients: Sequence[int], *, alike: bool = False) -> Answer:
        """Returns fine-tuned served models; if ``alike``, w is one model without a client axis."""
        if self._dense:
            return self._tuned_dense(w, self._support(clients), alike=alike)
        return self._applied(self._tuned_models(w, clients))

    def _tuned_models(self, w: Params, clients: Sequence[int]) -> Params:
        tuned: Params = self._for_each(self._personalize)(w, *self._support(clients).batches())
        return tuned

    def _tuned_dense(self, w: Params, support: Support, *, alike: bool) -> Answer:
        count, drawn = support.rows.shape
        size = max(stop - start for start, stop in support.edges)
        coordinates = make_coordinates([w[FIRST]], count, drawn, size=size)
        _, y = support.split.take(support.rows, out=coordinates.drawn)
        rows, targets = coordinates.see(0, drawn), self._targets(y)
        if alike:
            w = repeated(w, count)
        w = w | {FIRST: rows.fit(coordinates.base(0))}
        batches = (Examples(rows.narrow(*at), targets[:, slice(*at)]) for at in support.edges)
        tuned = self._personalize(w, *batches)
        layers, standard = self._network.dense_layers, self._standard

        def outputs(x: Tensor) -> Tensor:
            raw = logits(tuned, coordinates.see_others(x.flatten(2)), layers)
            return standard.restored(raw) if standard else raw

        return outputs

    def _support(self, clients: Sequence[int]) -> Support:
        """Returns the rows that clients fine-tune on, equally many for each."""
        e, count, size = self.experiment, self.drawn(clients[0]), self._batch(clients[0])
        if self._few_shot:
            split = self.data.test
            rows = [shuffled(e, split, client)[:count] for client in clients]
        else:
            split = self.data.train
            rows = [tuned_on(e, client, split.rows[client], count) for client in clients]
        return Support(split, torch.from_numpy(np.stack(rows)).to(split.y.device), size)

    def answers(
        self, serve: Mapping[Named, Answer], queries: Queries
    ) -> tuple[dict[Named, Outputs], Tensor]:
        """Returns the outputs (c, q, ...) of each model, and the targets (c, q, ...)."""
        parts, targets = list[dict[Named, Outputs]](), []
        for rows in self._in_blocks(queries.rows):
            x, y = queries.split.take(rows)
            targets.append(y)
            each = {answer: answer(x) for answer in dict.fromkeys(serve.values())}
            parts.append({which: each[answer] for which, answer in serve.items()})
        said: dict[Named, Outputs] = tree_map(lambda *x: torch.cat(x, 1), *parts)
        return said, torch.cat(targets, dim=1)

    def _in_blocks(self, rows: Tensor) -> Sequence[Tensor]:
        return torch.split(rows, max(1, BLOCK // (self.row * len(rows))), 1)

    def _for_each(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.vectorized:
            return vmap(function)

        def in_turn(*arguments: Any) -> Any:
            count = len(tree_leaves(arguments)[0])
            return stacked([function(*select(arguments, i)) for i in range(count)])

        return in_turn


def _shift_of(served: Served) -> Params:
    return {} if served.shift is None else {SHIFT: served.shift}
