"""Meta-learning on one machine that has all tasks: the interface, and algorithms without memories.

Every algorithm runs r independent runs at once; see ``engram.cohort.stacked_models``. So step sizes
may be tensors (r,), and losses are stacked (``stacked_loss``, ``dense_stacks``).

Builders of rules share these arguments, and raise ``ValueError`` for values out of range: a stacked
``loss``; ``tasks``, n >= 1; ``tasks_per_step``, B in 1..n; ``batch_size``, the K >= 1 rows of each
batch; ``alpha`` >= 0, the step size of adaptation; ``beta`` in (0, 1], the weight of the newest
adaptation in a memory; ``eta`` > 0, the meta step size; and ``hessian``, one of
``meta_gradient.HESSIANS``. Step sizes and weights are (r,), or one for all runs.
"""

from collections.abc import Callable
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

from engram.cohort.stacked_models import expand, mean_of_tasks
from engram.core.checks import anywhere, require
from engram.core.derivatives import LossWithDerivatives
from engram.core.tree import add_scaled, interpolate
from engram.core.types import Batch, Params, Scale
from engram.meta.meta_gradient import meta_gradient


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


class OnlyModel(NamedTuple):
    """The state of an algorithm that has only meta-models."""

    w: Params  # the meta-models, (r, ...)


S = TypeVar("S")  # a state, with meta-models w, leaves (r, ...), among other things


class MetaRule(NamedTuple, Generic[S]):
    """A meta-learning algorithm, as functions of an explicit state.

    Attributes:
        init: ``w -> state``; w has leaves (r, ...).
        step: ``(state, episodes) -> state``, one iteration. Its randomness is in the episodes.
            Memories in the state are written in place, since an iteration changes few of
            them; so do not use the state passed in again.
        cycle: The draws of successive iterations, repeated; an iteration gets one episode per draw.
        memories: Number of memories of a run: n or 0.
    """

    init: Callable[[Params], S]
    step: Callable[[S, tuple[Episode, ...]], S]
    cycle: tuple[tuple[Draw, ...], ...]
    memories: int

    def draws(self, t: int) -> tuple[Draw, ...]:
        """Returns the draws of iteration t, from 0."""
        return self.cycle[t % len(self.cycle)]


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


def local_moml(
    loss: LossWithDerivatives,
    *,
    tasks_per_step: int,
    batch_size: int,
    alpha: Scale,
    beta: Scale,
    eta: Scale,
    hessian: str = "exact",
    local_steps: int = 1,
    initial_batch_size: int = 0,
) -> MetaRule[OnlyModel]:
    """Builds LocalMOML on a single node (Wang et al. JMLR 2023, Sec. 5.1, with its equations).

    An iteration draws tasks, and starts each from w with ``u <- w - alpha grad L0(w)``. Each of its
    local steps is that of ``engram.methods.local_moml``; w becomes the mean of the tasks' models::

        u <- (1 - beta) u + beta (w - alpha grad L1(w))             (6)
        w <- w - eta (I - alpha hess L2(w)) grad L3(u)              (7)

    Nothing is kept of a task after the iteration, so there may be any number of tasks.

    With ``beta`` = 1 there is no memory. A memory starts from a batch of ``initial_batch_size``
    rows K0, >= 1 if beta is below 1; an iteration has ``local_steps`` H >= 1.
    """
    require((beta > 0) & (beta <= 1), "beta", beta, "in (0, 1]")
    require(eta > 0, "eta", eta, "positive")
    meta, remembers = meta_gradient(loss, alpha, hessian), anywhere(beta < 1)
    if remembers:
        require(initial_batch_size >= 1, "initial-batch-size", initial_batch_size, "at least 1")
    count = 1 + meta.batches

    def local(w: Params, batches: tuple[Batch, ...]) -> Params:
        # With beta = 1 the first step replaces u whatever it was, and no rows are drawn.
        u, first = (meta.adapt(w, batches[0]), 1) if remembers else (w, 0)
        for h in range(first, len(batches), count):
            newest, *others = batches[h : h + count]
            u = interpolate(u, meta.adapt(w, newest), beta)
            w = add_scaled(w, -eta, meta.at(w, u, others))
        return w

    initial = (initial_batch_size,) if remembers else ()
    return _towards_mean(local, tasks_per_step, batch_size, count, local_steps, initial)


def _towards_mean(
    local: Callable[[Params, tuple[Batch, ...]], Params],
    tasks_per_step: int,
    batch_size: int,
    batches: int,
    local_steps: int,
    initial: tuple[int, ...] = (),
    mix: Scale = 1.0,
) -> MetaRule[OnlyModel]:
    """Builds ``w <- (1 - mix) w + mix mean_i w_i``, where ``local`` makes w_i of w.

    A local step takes ``batches`` of ``batch_size`` rows; batches of ``initial`` rows come first.
    """
    check_sampling(tasks_per_step, batch_size)
    require(local_steps >= 1, "local-steps", local_steps, "at least 1")
    require(mix > 0, "mix", mix, "positive")
    draw = Draw(tasks_per_step, initial + (batch_size,) * (batches * local_steps))

    def step(state: OnlyModel, episodes: tuple[Episode, ...]) -> OnlyModel:
        ((_, drawn),) = episodes
        ends = mean_of_tasks(local(expand(state.w, tasks_per_step), drawn))
        return OnlyModel(interpolate(state.w, ends, mix))

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
    """Builds MAML: LocalMOML of one step without memory, ``w <- w - eta mean_i Delta_i`` by (2)."""
    b, k = tasks_per_step, batch_size
    moml = partial(local_moml, loss, tasks_per_step=b, batch_size=k, alpha=alpha)
    return moml(beta=1.0, eta=eta, hessian=hessian)


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

    ``alpha`` > 0 is the step size of SGD, ``eta`` the share of the way to the tasks' mean that w
    moves, and ``local_steps`` >= 1 the steps of SGD, each on a batch of its own.
    """
    require(alpha > 0, "alpha", alpha, "positive")

    def local(w: Params, batches: tuple[Batch, ...]) -> Params:
        for batch in batches:
            w = add_scaled(w, -alpha, loss.gradient(w, batch))
        return w

    return _towards_mean(local, tasks_per_step, batch_size, 1, local_steps, mix=eta)
