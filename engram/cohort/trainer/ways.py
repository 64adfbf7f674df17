"""Choice among the ways to train a cohort."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Generator, Tensor

from engram.cohort.dense import dense, pays
from engram.cohort.dense_gradients import FIRST, product_by_tangents
from engram.cohort.round import Cohort, Outcome, Problem, builder
from engram.core.derivatives import all_at_once, by_autograd, by_cohorts, by_functions, by_hand
from engram.core.method import Context, Method, Network, Objective, Slots
from engram.core.method_shapes import Shapes, gradients_of
from engram.core.personal_parameters import build
from engram.core.rounds import Stepper
from engram.core.slot_optimizers import Optimizer
from engram.core.standardization import Standard
from engram.core.types import Batch, LossFn, Params
from engram.networks.base import Model
from engram.networks.layer_units import converted
from engram.networks.losses import cohort_losses, dense_loss_of, mean_loss
from engram.networks.registry import FLAT
from engram.scoring.tasks import Task

if TYPE_CHECKING:
    from engram.guards.guard import Guard
    from engram.settings.experiment import Experiment

Way = Callable[[Cohort], Outcome]

_LARGE: Final = 2**18  # networks with more parameters are trained client by client on a CPU
_TRIES: Final = 2  # timings of each way, since the first one takes longer


class Learner(NamedTuple):
    """A method on a network, for each way to train it."""

    settings: Any  # the method's settings
    model: Model
    network: Network  # the model, as methods see it
    outputs: int  # number of classes, or of values
    clients: int  # number of clients of the federation
    generator: Callable[[], Generator]  # as ``Context.generator``
    optimizer: Optimizer  # the optimizer of local steps
    # Standardization of targets before the loss; None for targets as they are.
    standard: Standard | None
    work: Slots  # slots that a client works on, on torch's meta device, which holds no values
    # The guards at clients where they protect single rows; None for plain gradients.
    guard: "Guard | None" = None

    @property
    def size(self) -> int:
        """Numbers in the network's parameters."""
        return sum(leaf.numel() for leaf in self.network.initial.values())

    def gradients(self) -> int:
        """Returns the gradients that a local step takes; 0 if unknown. See ``gradients_of``."""

        def made(objective: Objective) -> Method:
            return build(self.settings, self._on(objective))

        try:
            with torch.device("meta"):
                return max(gradients_of(made, self.work))
        except Exception:  # a user's method may read its batches, of which there are none here
            return 0

    def method(self, task: Task, way: str = "vmap") -> Method:
        """Builds the method for a way to train."""
        return build(self.settings, self._on(self.objective(task, way)))

    def _on(self, objective: Objective) -> Context:
        return Context(self.network, objective, self.outputs, self.clients, self.generator)

    def objective(self, task: Task, way: str, missed: dict[str, bool] | None = None) -> Objective:
        """Returns the loss that clients minimize, with its derivatives for a way to train.

        For ``missed`` see ``Stepper``.
        """
        learned = converted(task, self.standard and self.standard.scaled)
        loss = mean_loss(self.model, learned)

        def criterion(outputs: Tensor, batch: Batch) -> Tensor:
            return learned.loss(outputs, batch[1])

        if self.guard is not None:
            from engram.guards.row_sums import dense_sums, summed  # noqa: PLC0415 - for noise on rows alone

            layers = self.model.dense_layers if self.model.features is None else 0
            sums = dense_sums(learned.loss, layers) if layers else summed(loss)
            return self.guard.rows(by_functions(loss, criterion), sums)
        if way == "in-turn":
            return by_autograd(loss, criterion, missed)
        if way == "dense":
            return by_hand(self._dense(task)[0], criterion)
        if way == "in-spans":
            by_tangents = product_by_tangents((dense := self._dense(task)[0]).gradient)
            return by_hand(replace(dense, hessian_product=by_tangents), criterion)
        if way == "grouped":
            return by_cohorts(loss, self._losses(learned), criterion)
        return by_functions(loss, criterion)

    def _losses(self, task: Task) -> LossFn:
        losses = cohort_losses(self.model, task)
        assert losses is not None  # for mypy: see ``fastest``
        return losses

    def _dense(self, task: Task) -> Any:
        return dense_loss_of(task, self.model.dense_layers, self.outputs, self.standard)

    def _reported(self, task: Task, way: str) -> Callable[..., Tensor]:
        """Returns the training loss that is reported: ``(params, batch, shift) -> ()``."""
        if way == "dense":  # where nothing is shifted: see ``fastest``
            layers = self.model.dense_layers
            task = converted(task, self.standard and self.standard.restored)
            return dense_loss_of(task, layers, self.outputs)[0].value
        grouped = way == "grouped"
        plain = all_at_once(self._losses(task)) if grouped else mean_loss(self.model, task)

        def reported(w: Params, batch: Batch, shift: Tensor | None = None) -> Tensor:
            if shift is None:
                return plain(w, batch)
            return task.loss(self.network.represent(w, batch, shift)[0], batch[1])

        return reported

    def trains(self, way: str, task: Task, factor: float = 1.0) -> Way:
        """Returns a way to train a cohort."""
        missed = dict[str, bool]()
        build = builder(self.settings, self._on(self.objective(task, way, missed)))
        running, still = self.network.running, self.model.unreached
        statistics = self.model.statistics
        if way == "grouped" and (together := self.model.statistics_together) is not None:
            statistics = all_at_once(together)
        stepper = Stepper(self.optimizer, factor, running, statistics, still, missed)
        problem = Problem(build, stepper.take, self._reported(task, way))
        if way == "dense":
            _, targets = self._dense(task)
            return partial(dense, problem, targets=targets, features=self.model.features)
        if way == "in-spans":
            from engram.cohort.spans import in_spans  # noqa: PLC0415 - not always needed

            assert self.model.features is not None  # for mypy: see ``fastest``
            _, targets = self._dense(task)
            seen, gradients = self.model.features, self.gradients()
            return partial(in_spans, problem, targets=targets, features=seen, gradients=gradients)
        if way == "in-turn":
            from engram.cohort.sequential import in_turn  # noqa: PLC0415 - not always needed

            return partial(in_turn, problem)
        from engram.cohort.vmapped import at_once  # noqa: PLC0415 - not always needed

        return partial(at_once, problem)

    def fastest(
        self, experiment: "Experiment", shapes: Shapes, *, rows: int, size: int, keeps: bool
    ) -> tuple[str, ...]:
        """Returns the ways that may be the fastest, for networks that ``vmap`` can run.

        Args:
            experiment: The settings.
            shapes: The method's slots of one client.
            rows: Rows that a client draws in a round.
            size: Rows of a batch.
            keeps: Whether clients keep the optimizer's states.
        """
        name, device = experiment.model, experiment.device
        if self.guard is not None:
            return ("in-turn",) if self.size > _LARGE and device == "cpu" else ("vmap",)
        model, phases = self.model, shapes.method.client.phases
        affine = all(phase.affine for phase in phases) and self.optimizer.affine
        # The loss that is reported is of what serves; a mixture's is not written out.
        affine &= shapes.served.weights is None and shapes.served.shift is None
        written_out = affine and model.dense_layers and not keeps
        if written_out:
            if model.features is None:
                return ("dense",)
            # Of epochs, the steps differ between clients.
            single = not experiment.local_epochs and all(
                phase.one_gradient_per_batch for phase in phases
            )
            if single and _single_first_layer(shapes) and pays(shapes.received["model"], rows):
                return ("dense",)
        if device != "cpu":
            return ("vmap",)
        if name in FLAT and self.size > _LARGE:
            # A large network fills the caches: finishing one client first is faster.
            spans = written_out and not self.optimizer.remembers  # with features, if it came here
            return ("in-spans",) if spans and self._fits(size) else ("in-turn",)
        # Of a user's network training finds out which is faster.
        together = ("vmap",) if model.together is None else ("vmap", "grouped")
        return together if name in FLAT else ("in-turn", *together)

    def _fits(self, size: int) -> bool:
        """Returns whether a span of some steps' rows is cheaper than the weights."""
        from engram.cohort.spans import STEPS  # noqa: PLC0415 - not always needed

        drawn = STEPS * self.gradients() * size
        return drawn > 0 and pays(self.network.initial, 2 * drawn)


def quickest(ways: Mapping[str, Way], cohort: Cohort) -> str:
    """Returns the name of the fastest of some ways to train, by the first step of a cohort."""
    if len(ways) == 1:
        return next(iter(ways))
    first, times = cohort._replace(draws=cohort.draws.first(1)), dict.fromkeys(ways, inf)
    for _ in range(_TRIES):
        for name, way in ways.items():
            start = time.process_time()  # not wall time: others may use the machine, too
            way(first)
            times[name] = min(times[name], time.process_time() - start)
    return min(times, key=times.__getitem__)


def _single_first_layer(shapes: Shapes) -> bool:
    """Returns whether the only first dense layer of a client is the common model's.

    With learned features, the span of a round's rows holds no other one.
    """
    slots = [*shapes.received.items(), *shapes.kept.items()]
    return [slot for slot, x in slots if isinstance(x, dict) and FIRST in x] == ["model"]
