"""Methods in which clients train a common network by local steps, and then have one of their own.

To add one, write its rule in ``engram/``, and a class here. Everything else (settings, engines,
evaluation, the contract tests) finds it by its name.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from engram.checks import must
from engram.metrics import METRICS, Metric, named
from engram.tasks import TASKS, task_of
from federation.columns import Column, columns_of
from federation.methods.base import Method, method
from federation.settings.fields import Float, Int
from federation.settings.shared import SharedSettings

# The science is imported where it is used: listing settings, or mistyping one, loads no torch.
if TYPE_CHECKING:
    from engram.aggregates import Aggregate
    from engram.types import LocalRule, LossFn

__all__ = [
    "COMMON",
    "KEPT",
    "PERSONALIZED",
    "FedAvg",
    "LocalMethod",
    "LocalMoml",
    "PFedMe",
    "PerFedAvg",
    "columns",
]

# Which model a column is about, behind the metric's name: the common one after personalization, as
# it is, and the one that a client keeps.
PERSONALIZED, COMMON, KEPT = "", "-before", "-own"


def columns(metrics: Iterable[Metric]) -> list[Column]:
    """Returns the columns of clients' scores: each metric of each model, and not all keep one."""
    return columns_of(metrics, {PERSONALIZED: False, COMMON: False, KEPT: True})


Hessian = Literal["exact", "first-order", "finite-difference"]
_HESSIAN = (
    "how the meta-gradient treats the Hessian: exact, first-order (leaves it out) or "
    "finite-difference"
)
_EUCLIDEAN = "1 where server-step is universal, which no factor of updates bears on"


class LocalMethod(Method):
    """A method whose two sides are a local rule and an aggregate."""

    plug_in = "local"

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part.

        Args:
            loss: Mean loss over a batch, of the common network.
        """
        # Every method has its own. Not abstract by type: Experiment.of takes concrete classes.
        raise NotImplementedError

    def aggregate(self) -> "Aggregate":
        """Builds the server's part."""
        from engram.aggregates import mean

        return mean()

    def metrics(self, shared: SharedSettings) -> list[Metric]:
        """Returns what models are scored by: the chosen metrics, and then the loss."""
        task = task_of(shared.task, shared.loss)
        return [*named((shared.metrics or task.metrics).split(",")), task.metric]

    @property
    def keeps_memory(self) -> bool:
        """Whether clients remember their rule's state from one round to the next."""
        return False

    @property
    def initial_rows(self) -> int:
        """Rows that a client's memory starts from; 0 where none is made of rows."""
        return 0

    def problems(self, shared: SharedSettings) -> Iterator[str]:
        """Says what is wrong with settings that depend on each other."""
        if shared.num_classes == 1:
            yield must("num-classes", 1, "0, or at least 2")
        asked = shared.clients_per_round
        if asked > shared.num_clients:
            yield must("clients-per-round", asked, f"at most num-clients = {shared.num_clients}")
        if asked % shared.shards:
            yield must("shards", shared.shards, f"a divisor of clients-per-round = {asked}")
        if shared.min_clients > asked:
            yield must("min-clients", shared.min_clients, f"at most clients-per-round = {asked}")
        if shared.local_epochs and shared.order == "stream":
            yield must("local-epochs", shared.local_epochs, "0 where order is stream")
        if shared.optimizer == "sgd" and shared.optimizer_state == "kept":
            yield must("optimizer-state", "kept", "fresh where optimizer is sgd, which has none")
        yield from shared.protection_problems(asked)
        yield from _metrics_that_do_not_fit(shared)


def _metrics_that_do_not_fit(shared: SharedSettings) -> Iterator[str]:
    kind = TASKS[shared.task].targets
    fit = [name for name, metric in METRICS.items() if kind in (metric.targets or (kind,))]
    unfit = [name for name in shared.metrics.split(",") if name and name not in fit]
    if unfit:
        expected = f"some of {', '.join(fit)} for task {shared.task}"
        yield must("metrics", ",".join(unfit), expected)


@method
class LocalMoml(LocalMethod):
    """The memory-based method."""

    name = "local-moml"
    meaning = "memory-based meta-learning; memory reset or carried"
    source = "Wang et al., JMLR 2023, Alg. 3"

    alpha: Float = Field(0.01, ge=0, description="adaptation step size")
    beta: Float = Field(
        0.5, gt=0, le=1, description="weight of the newest adaptation in the memory"
    )
    eta: Float = Field(0.1, gt=0, description="step size of the common model")
    hessian: Hessian = Field("exact", description=_HESSIAN)
    memory: Literal["reset", "carry"] = Field(
        "reset",
        description="whether memories start anew each round (cross-device) or are carried over "
        "(cross-silo)",
    )
    initial_batch_size: Int = Field(5, ge=1, description="rows that a memory starts from (K0)")

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.meta.local_moml import local_moml

        return local_moml(
            loss, alpha=self.alpha, beta=self.beta, eta=self.eta, hessian=self.hessian
        )

    @property
    def keeps_memory(self) -> bool:
        """Whether memories are carried over."""
        return self.memory == "carry"

    @property
    def initial_rows(self) -> int:
        """Rows that a memory starts from."""
        return self.initial_batch_size

    @property
    def rows_needed(self) -> dict[str, int]:
        """A client needs as many rows as its memory starts from."""
        return {f"{self.name}.initial-batch-size": self.initial_batch_size}


@method
class PerFedAvg(LocalMethod):
    """Meta-learning without memory."""

    name = "per-fedavg"
    meaning = "meta-learning without memory: local-moml with beta = 1"
    source = "Fallah et al., NeurIPS 2020; Wang et al., JMLR 2023, Sec. 5.1"

    alpha: Float = Field(0.01, ge=0, description="adaptation step size")
    eta: Float = Field(0.1, gt=0, description="step size of the common model")
    hessian: Hessian = Field("exact", description=_HESSIAN)

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.meta.local_moml import per_fedavg

        return per_fedavg(loss, alpha=self.alpha, eta=self.eta, hessian=self.hessian)


@method
class PFedMe(LocalMethod):
    """Personal models near the common one."""

    name = "pfedme"
    meaning = "personal models held near the common one by a proximal term"
    source = "T Dinh et al., NeurIPS 2020, Alg. 1"

    alpha: Float = Field(0.01, ge=0, description="inner step size")
    eta: Float = Field(0.1, gt=0, description="step size of the common model")
    lambda_: Float = Field(15.0, gt=0, description="weight of the proximal term")
    inner_steps: Int = Field(5, ge=1, description="steps towards the proximal point")
    server_mix: Float = Field(1.0, gt=0, le=10**6, description="weight of the round's mean (beta)")

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.meta.pfedme import pfedme

        return pfedme(
            loss,
            alpha=self.alpha,
            eta=self.eta,
            strength=self.lambda_,
            inner_steps=self.inner_steps,
        )

    def aggregate(self) -> "Aggregate":
        """Builds the server's part."""
        from engram.aggregates import mixed_mean

        return mixed_mean(self.server_mix)

    @property
    def keeps_memory(self) -> bool:
        """Always: its state is the personal model that it exists for."""
        return True

    def problems(self, shared: SharedSettings) -> Iterator[str]:
        """Says what is wrong with settings that depend on each other."""
        yield from super().problems(shared)
        if self.alpha * self.lambda_ >= 2:  # else the inner steps diverge
            yield must("alpha * lambda", self.alpha * self.lambda_, "below 2")
        if self.server_mix != 1 and shared.server_step == "universal":
            # The ensemble makes the same of gradients and of their multiples.
            yield must(f"{self.name}.server-mix", self.server_mix, _EUCLIDEAN)


@method
class FedAvg(LocalMethod):
    """The common model alone."""

    name = "fedavg"
    meaning = "one common model, fine-tuned by each client"
    source = "McMahan et al., AISTATS 2017"

    eta: Float = Field(0.1, gt=0, description="step size of a client's local steps")

    def rule(self, loss: "LossFn") -> "LocalRule":
        """Builds the client's part."""
        from engram.meta.fedavg import fedavg

        return fedavg(loss, eta=self.eta)

    def aggregate(self) -> "Aggregate":
        """Builds the server's part."""
        from engram.aggregates import mean

        return mean("examples")
