"""Base of methods in which clients train networks by local steps.

To add one, write its rule in ``engram/``, and a class in one of the files beside this one.
Everything else (settings, engines, evaluation, the contract tests) finds it by its name.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar

from engram.checks import Fault, clash
from engram.metrics import METRICS, Metric, named
from engram.steps import OPTIMIZERS
from engram.tasks import TASKS, task_of
from federation.columns import Column, columns_of
from federation.methods.base import Method
from federation.settings.fields import key_of
from federation.settings.shared import SharedSettings

# The science is imported where it is used: listing settings, or mistyping one, loads no torch.
if TYPE_CHECKING:
    from engram.aggregates import Aggregate
    from engram.models import Model, Part
    from engram.tasks import Task
    from engram.types import LocalRule, LossFn, Recall

    Parted = Callable[[LocalRule], LocalRule]

__all__ = [
    "COMMON",
    "KEPT",
    "PERSONALIZED",
    "SERVED",
    "UNSEEN",
    "VALIDATION",
    "LocalMethod",
]

# Which model a column is about, behind the metric's name: the common one after fine-tuning, as it
# is, and the one that a client keeps; and whichever of them the method serves the client by.
PERSONALIZED, COMMON, KEPT, SERVED = "", "-before", "-own", "-served"
# Which rows, or whose, before the metric's name; of test rows and of those who train otherwise.
VALIDATION, UNSEEN = "validation-", "unseen-"


class LocalMethod(Method):
    """A method whose two sides are a local rule and an aggregate.

    Attributes:
        serves: Which model a client is served by in the end: ``PERSONALIZED``, ``COMMON`` or
            ``KEPT``. A client that keeps none yet is served by the fine-tuned one.
        shows: Which models a comparison has a row for.
        reference: Whether every comparison has it, as what others must be better than.
        server_steps: Whether the server takes a step of its own, which no other can replace.
        apart: Whether the server merges some clients apart from others, so that nothing that bounds
            or replaces a mean over all of them would protect anybody.
        least_steps: Local steps that a round must have, where it is so many and not epochs.
        unscaled: Fields that are numbers, but that a rule does not multiply by: runs that differ in
            them do not train as one stack.
        part: The part of the network that each client keeps to itself, where the settings
            ``personal`` and ``share`` do not say; see ``engram.models.part_of``.
        tasks: The tasks that it is for; empty for all of them.
    """

    plug_in = "local"
    serves: ClassVar[str] = PERSONALIZED
    shows: ClassVar[tuple[str, ...]] = (SERVED,)
    reference: ClassVar[bool] = False
    server_steps: ClassVar[bool] = False
    apart: ClassVar[bool] = False
    least_steps: ClassVar[int] = 1
    unscaled: ClassVar[frozenset[str]] = frozenset()
    part: ClassVar["Part"] = ""
    tasks: ClassVar[tuple[str, ...]] = ()

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part.

        Args:
            loss: Mean loss over a batch, of the common network, as ``loss`` builds it.
        """
        # Every method has its own. Not abstract by type: Experiment.of takes concrete classes.
        raise NotImplementedError

    def network(self, model: "Model", outputs: int) -> "Model":
        """Returns the network with what the method has beside its parameters; by default, nothing.

        Args:
            model: The network, with its personal parameters.
            outputs: Number of classes, or of values.

        Raises:
            ValueError: If the network does not suit the method.
        """
        del outputs
        return model

    def loss(self, network: "Model", task: "Task") -> "LossFn":
        """Builds what local steps lower; by default, the task's mean loss.

        Args:
            network: As ``network`` returns it.
            task: What is learned.
        """
        from engram.models import mean_loss

        return mean_loss(network, task)

    def in_parts(self, network: "Model", shared: SharedSettings) -> "Parted":
        """Returns what has a rule's steps train parts of the network; by default, all of it."""
        del network, shared
        return lambda rule: rule

    def recall(self) -> "Recall | None":
        """Builds what serves a client by its own training rows, beside the common model.

        A method that has it serves by ``KEPT``, which every client then has, whether or not it has
        trained. The network must have a representation.
        """
        return None

    def aggregate(self, shared: SharedSettings) -> "Aggregate":
        """Builds the server's part."""
        del shared
        from engram.aggregates import mean

        return mean()

    def server(self, network: "Model", shared: SharedSettings) -> "Aggregate":
        """Builds the server's part for a network; by default, the one that suits them all."""
        del network
        return self.aggregate(shared)

    def metrics(self, shared: SharedSettings) -> list[Metric]:
        """Returns what models are scored by: the chosen metrics, and then the loss."""
        task = task_of(shared.task, shared.loss)
        return [*named((shared.metrics or task.metrics).split(",")), task.metric]

    def columns(self, shared: SharedSettings) -> list[Column]:
        """Returns the columns of clients' scores: each metric of each model, on test rows first."""
        models = {PERSONALIZED: False, COMMON: False, KEPT: True}  # not every client keeps one
        found = columns_of(self.metrics(shared), models)
        if shared.validates:
            found += [column._replace(name=VALIDATION + column.name) for column in found]
        return found

    @classmethod
    def step_sizes(cls) -> list[str]:
        """Returns the keys of the method's step sizes: the settings that are described as one."""
        described = ((name, field.description or "") for name, field in cls.model_fields.items())
        return [f"{cls.name}.{key_of(name)}" for name, told in described if "step size" in told]

    @property
    def keeps_memory(self) -> bool:
        """Whether clients remember their rule's state from one round to the next."""
        return False

    @property
    def initial_rows(self) -> int:
        """Rows that a client's memory starts from; 0 where none is made of rows."""
        return 0

    def problems(self, shared: SharedSettings) -> Iterator[Fault]:
        """Yields the faults of settings that depend on each other."""
        if shared.num_classes == 1:
            yield clash("num-classes", 1, "0, or at least 2")
        yield from _impossible_cohorts(shared)
        if shared.local_epochs and shared.order == "stream":
            yield clash("local-epochs", shared.local_epochs, "0 where order is stream", "order")
        users = OPTIMIZERS.get(shared.optimizer)
        stateless = not users.remembers if users else shared.optimizer == "sgd"
        if stateless and shared.optimizer_state == "kept":
            expected = f"fresh where optimizer is {shared.optimizer}, which has none"
            yield clash("optimizer-state", "kept", expected, "optimizer")
        if shared.privacy != "none" and shared.standardize == "federation":
            told = f"auto, client or none where privacy is {shared.privacy}: sums have no noise"
            yield clash("standardize", shared.standardize, told, "privacy")
        yield from self._unsuitable(shared)
        yield from shared.protection_problems(shared.clients_per_round)
        yield from _metrics_that_do_not_fit(shared)

    def _unsuitable(self, shared: SharedSettings) -> Iterator[Fault]:
        """Yields the shared settings that the method does not go with."""
        if self.tasks and shared.task not in self.tasks:
            yield clash("task", shared.task, f"{' or '.join(self.tasks)} for {self.name}")
        if not shared.local_epochs and shared.local_steps < self.least_steps:
            expected = f"at least {self.least_steps} for {self.name} where local-epochs is 0"
            yield clash("local-steps", shared.local_steps, expected, "local-epochs")
        if self.server_steps and shared.server_step != "replace":
            expected = f"replace for {self.name}, whose server has a step of its own"
            yield clash("server-step", shared.server_step, expected)
        for key, value, plain in (("clip", shared.clip, 0), ("merge", shared.merge, "mean")):
            if self.apart and value != plain:
                yield clash(key, value, f"{plain} for {self.name}, which merges some clients apart")


def _impossible_cohorts(shared: SharedSettings) -> Iterator[Fault]:
    asked = shared.clients_per_round
    unseen, seen = shared.unseen_clients, shared.num_clients - shared.unseen_clients
    if unseen and seen < 1:
        below = f"below num-clients = {shared.num_clients}"
        yield clash("unseen-clients", unseen, below, "num-clients")
    elif asked > seen:
        but = f" - unseen-clients = {seen}" if unseen else f" = {seen}"
        yield clash("clients-per-round", asked, f"at most num-clients{but}", "num-clients")
    if shared.patience and not shared.validates:
        expected = "0 without validation rows: protocol few-shot, or validation-fraction 0"
        yield clash("patience", shared.patience, expected, "protocol", "validation-fraction")
    if asked % shared.shards:
        divisor = f"a divisor of clients-per-round = {asked}"
        yield clash("shards", shared.shards, divisor, "clients-per-round")
    if shared.min_clients > asked:
        most = f"at most clients-per-round = {asked}"
        yield clash("min-clients", shared.min_clients, most, "clients-per-round")


def _metrics_that_do_not_fit(shared: SharedSettings) -> Iterator[Fault]:
    kind = TASKS[shared.task].targets
    fit = [name for name, metric in METRICS.items() if kind in (metric.targets or (kind,))]
    unfit = [name for name in shared.metrics.split(",") if name and name not in fit]
    if unfit:
        expected = f"some of {', '.join(fit)} for task {shared.task}"
        yield clash("metrics", ",".join(unfit), expected, "task")
