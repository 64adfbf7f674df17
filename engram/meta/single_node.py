"""Meta-learning on one machine that has all tasks: the interface, and algorithms made of rules.

Every algorithm runs r independent runs at once; see ``engram.stacks``. So step sizes may be tensors
(r,), and losses are stacked (``stacks.stacked_loss``, ``stacks.dense_stacks``).
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from torch import Tensor

from engram.checks import require
from engram.derivatives import LossWithDerivatives
from engram.meta.fedavg import fedavg
from engram.meta.local_moml import per_fedavg
from engram.stacks import expand, mean_of_tasks
from engram.tree import interpolate
from engram.types import Batch, LocalRule, Params, Scale

__all__ = [
    "Allocator",
    "Draw",
    "Episode",
    "HasModel",
    "MetaRule",
    "OnlyModel",
    "check_sampling",
    "in_memory",
    "maml",
    "reptile",
    "single_node",
]


class Draw(NamedTuple):
    """The samples that a step requests.

    Attributes:
        tasks: Number of tasks, drawn uniformly without replacement; None: all of them.
        sizes: Number of rows in each of the independent batches from every such task.
    """

    tasks: int | None
    sizes: tuple[int, ...]


class Episode(NamedTuple):
    """The samples drawn for every run.

    Attributes:
        tasks: Numbers of the tasks, (r, b), int64.
        batches: Their batches, each with leading axes (r, b).
    """

    tasks: Tensor
    batches: tuple[Batch, ...]


class HasModel(Protocol):
    """A state with meta-models w, leaves (r, ...), among other things."""

    @property
    def w(self) -> Params:
        """The meta-models."""


class OnlyModel(NamedTuple):
    """The state of an algorithm that has only meta-models."""

    w: Params  # the meta-models, (r, ...)


S = TypeVar("S", bound=HasModel)


class MetaRule(NamedTuple, Generic[S]):
    """A meta-learning algorithm, as functions of an explicit state.

    Attributes:
        init: ``w -> state``; w has leaves (r, ...).
        step: ``(state, episodes) -> state``, one iteration. Its randomness is in the episodes.
            Memories in the state are written in place, since an iteration changes few of
            them; so do not use the state passed in again.
        cycle: The draws of successive iterations, repeated; an iteration gets one episode per draw.
        memories: Number of memories of a run: n or 0.
        resident: Whether an iteration computes with all memories, and so needs them in memory.
    """

    init: Callable[[Params], S]
    step: Callable[[S, tuple[Episode, ...]], S]
    cycle: tuple[tuple[Draw, ...], ...]
    memories: int
    resident: bool = False

    def draws(self, t: int) -> tuple[Draw, ...]:
        """Returns what iteration t (from 0) draws."""
        return self.cycle[t % len(self.cycle)]


Allocator = Callable[[str, tuple[int, ...], Tensor], Tensor]  # (name, shape, like) -> zeros


def in_memory(name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Allocates memories as zeros in RAM; the default ``Allocator``."""
    del name
    return like.new_zeros(shape)


def check_sampling(tasks_per_step: int, batch_size: int, tasks: int | None = None) -> None:
    """Checks that batches have at least one row and a possible number of tasks.

    Raises:
        ValueError: If a size is out of range.
    """
    require(tasks_per_step >= 1, "tasks-per-step", tasks_per_step, "at least 1")
    if tasks is not None:
        expected = f"at most {tasks}, the number of tasks"
        require(tasks_per_step <= tasks, "tasks-per-step", tasks_per_step, expected)
    require(batch_size >= 1, "batch-size", batch_size, "at least 1")


def single_node(
    rule: LocalRule,
    *,
    tasks_per_step: int,
    batch_size: int,
    local_steps: int = 1,
    initial_batch_size: int = 0,
    mix: Scale = 1.0,
) -> MetaRule[OnlyModel]:
    """Runs a federated rule on a single node: LocalMOML (Sec. 5.1), Per-FedAvg, and so on.

    An iteration draws tasks, starts each from w with a new memory, takes ``local_steps`` steps of
    the rule, and moves w towards the mean of their models, ``w <- (1 - mix) w + mix mean``. Nothing
    is kept of a task after the iteration, so there may be any number of tasks (Sec. 5.1).

    Args:
        rule: Built on a stacked loss.
        tasks_per_step: B; >= 1.
        batch_size: K, rows of each of a local step's batches; >= 1.
        local_steps: H; >= 1.
        initial_batch_size: K0, rows of the batch that a memory starts from; >= 1 if the rule needs
            one.
        mix: Step size towards the mean; > 0.

    Raises:
        ValueError: If a value is out of range.
    """
    check_sampling(tasks_per_step, batch_size)
    require(local_steps >= 1, "local-steps", local_steps, "at least 1")
    require(mix > 0, "mix", mix, "positive")
    if rule.needs_initial_batch:
        require(initial_batch_size >= 1, "initial-batch-size", initial_batch_size, "at least 1")
    initial = (initial_batch_size,) if rule.needs_initial_batch else ()
    draw = Draw(tasks_per_step, initial + (batch_size,) * (rule.batches_per_step * local_steps))

    def step(state: OnlyModel, episodes: tuple[Episode, ...]) -> OnlyModel:
        ((_, batches),) = episodes
        w = expand(state.w, tasks_per_step)
        u = rule.init(w, batches[0] if initial else None)
        for h in range(len(initial), len(batches), rule.batches_per_step):
            w, u = rule.step(w, u, batches[h : h + rule.batches_per_step])
        return OnlyModel(interpolate(state.w, mean_of_tasks(w), mix))

    return MetaRule(OnlyModel, step, ((draw,),), memories=0)


def maml(
    loss: LossWithDerivatives,
    *,
    tasks_per_step: int,
    batch_size: int,
    alpha: float,
    eta: Scale,
    hessian: str = "exact",
) -> MetaRule[OnlyModel]:
    """Builds MAML: Per-FedAvg with one local step, ``w <- w - eta mean_i Delta_i`` by (2)."""
    rule = per_fedavg(loss, alpha=alpha, eta=eta, hessian=hessian)
    return single_node(rule, tasks_per_step=tasks_per_step, batch_size=batch_size)


def reptile(
    loss: LossWithDerivatives,
    *,
    tasks_per_step: int,
    batch_size: int,
    alpha: float,
    eta: Scale,
    local_steps: int,
) -> MetaRule[OnlyModel]:
    """Builds Reptile: ``w <- w + eta mean_i (w_i - w)``, w_i after some steps of SGD from w.

    Nichol, Achiam, Schulman. On First-Order Meta-Learning Algorithms. 2018, Alg. 2. With one local
    step it is SGD on the mean of the tasks' losses, and no meta-learning.

    Args:
        loss: A stacked loss.
        tasks_per_step: B; >= 1.
        batch_size: K, rows of the batch of each local step; >= 1.
        alpha: Step size of SGD; > 0.
        eta: Share of the way to the tasks' mean that w moves; > 0.
        local_steps: Steps of SGD; >= 1.
    """
    return single_node(
        fedavg(loss, eta=alpha),
        tasks_per_step=tasks_per_step,
        batch_size=batch_size,
        local_steps=local_steps,
        mix=eta,
    )
