"""Sweeps: runs of one method side by side, with the same budget of samples for all methods."""

import time
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from engram.cohort.stacked_models import Layout
from engram.core.derivatives import LossWithDerivatives
from engram.core.streams import Stream, generator, torch_generator
from engram.core.types import Batch, Params
from engram.meta.single_node import Draw, Episode, MetaRule
from engram.meta.studies.methods import METHODS, MetaLearner, RuleArguments, maml_batches
from engram.networks.base import Model
from engram.settings.errors import Refused

_BLOCK: Final = 64  # iterations drawn at once; never change it: results depend on it
_LOOKS: Final = 40  # how often the training error is measured
_PAUSE: Final = 25  # iterations between reports of progress


class Drawn(NamedTuple):
    """One draw, for every run."""

    tasks: Tensor  # (r, b), int64
    uniforms: Tensor  # (r, b, k), uniform in [0, 1): one for each row of each batch, in order


class EpisodeSampler:
    """Draws tasks, and the uniform numbers that rows are made from, iteration by iteration.

    All is a function of (seed, iteration): runs that differ only in their step sizes, and
    algorithms that draw the same amounts in an iteration, see the same tasks and rows.
    """

    def __init__(
        self, seeds: Sequence[int], tasks: int, draws: Callable[[int], tuple[Draw, ...]]
    ) -> None:
        """Prepares; nothing is drawn yet."""
        self._seeds = sorted(set(seeds))
        alike = self._seeds == list(seeds)  # then runs need no indices into the draws
        self._run = None if alike else torch.tensor([self._seeds.index(seed) for seed in seeds])
        self._tasks, self._draws = tasks, draws
        self._begun = -1

    def draw(self, t: int) -> tuple[Drawn, ...]:
        """Returns the draws of iteration t."""
        block, at = divmod(t, _BLOCK)
        if block != self._begun:
            self._begin(block)
        found, start = [], 0
        for i, wanted in enumerate(self._draws(t)):
            if wanted.tasks is None:
                tasks = torch.arange(self._tasks).expand(len(self._seeds), -1)
            else:
                tasks = self._orders[:, i, at, : wanted.tasks]
            b, k = tasks.shape[1], sum(wanted.sizes)
            uniforms = self._uniforms[:, at, start : start + b * k].view(-1, b, k)
            start += b * k
            if self._run is not None:
                tasks, uniforms = tasks[self._run], uniforms[self._run]
            found.append(Drawn(tasks, uniforms))
        return tuple(found)

    def _begin(self, block: int) -> None:
        wanted = [self._draws(t) for t in range(block * _BLOCK, (block + 1) * _BLOCK)]
        count = max(len(draws) for draws in wanted)
        tasks = self._tasks
        numbers = max(sum((d.tasks or tasks) * sum(d.sizes) for d in draws) for draws in wanted)
        order = np.tile(np.arange(tasks), (_BLOCK, 1))
        orders, uniforms = [], []
        for seed in self._seeds:
            streams = (generator(seed, Stream.EPISODE_TASKS, block, i) for i in range(count))
            orders.append([rng.permuted(order, axis=1) for rng in streams])
            # Drawn row by row with a column per iteration, so that an iteration's numbers do not
            # depend on how many others draw.
            rng = generator(seed, Stream.EPISODE_ROWS, block)
            uniforms.append(rng.random((numbers, _BLOCK), dtype=np.float32).T)
        self._orders = torch.from_numpy(np.stack(orders))
        self._uniforms = torch.from_numpy(np.stack(uniforms))
        self._begun = block


class Problem:
    """Training tasks, and tests on unseen ones. Models of r runs are stacked: (r, d)."""

    tasks: int  # number of training tasks, n
    network: Model  # the network that learns them
    layout: Layout  # layout of its flat parameters
    loss: LossWithDerivatives  # the stacked loss of flat parameters
    matching: LossWithDerivatives | None = None  # ProtoNet's loss, if there are classes

    def start(self, seed: int) -> Params:
        """Returns a seed's initial network."""
        return self.network.init(torch_generator(seed, Stream.MODEL))

    def batch(self, tasks: Tensor, uniforms: Tensor) -> Batch:
        """Returns rows of training tasks (r, b), one for each uniform number (r, b, k)."""
        raise NotImplementedError

    def error(self, w: Params, method: str) -> Tensor:
        """Returns each meta-model's error (r,) on the training tasks after adapting to them."""
        raise NotImplementedError

    def measure(self, w: Params, method: str) -> list[dict[str, Any]]:
        """Returns each meta-model's test results, for JSON."""
        raise NotImplementedError


class SweepRun(NamedTuple):
    """One run of a sweep."""

    name: str  # its name in tables: the method's, or that with an addition
    method: str  # one of ``METHODS``
    beta: float  # its memory's weight; 1 if it has none
    eta: float  # its initial meta step size
    seed: int  # seed of its network and of all that it draws


class Sweep(NamedTuple):
    """Runs of methods with one builder, and their common parameters."""

    runs: tuple[SweepRun, ...]  # the runs
    batch_size: int  # K
    tasks_per_step: int  # B
    alpha: float  # adaptation step size
    hessian: str  # one of ``meta_gradient.HESSIANS``
    iterations: int  # MAML's; other methods make as many as see the same number of rows

    @property
    def method(self) -> MetaLearner:
        """Builder of its runs."""
        return METHODS[self.runs[0].method]


class Trace(NamedTuple):
    """The result of a sweep."""

    w: Params  # the meta-models, flat, (r, d)
    samples: list[int]  # rows of all tasks seen when errors were measured
    # The training errors then, (r, looks); infinite for runs that have diverged.
    errors: npt.NDArray[np.float64]
    iterations: int  # number of iterations of each run
    seconds: float  # core seconds that an iteration of one run took, without measuring errors


def check_sweep(problem: Problem, sweep: Sweep) -> int:
    """Checks a sweep before it is started; returns the bytes of its tasks' memories.

    Raises:
        Refused: A value lies outside its range, or an iteration draws more tasks than there are.
    """
    rule, _ = _rules(problem, sweep)
    most = max(draw.tasks or 0 for draws in rule.cycle for draw in draws)
    if most > problem.tasks:
        raise Refused(f"an iteration draws {most} tasks, and there are {problem.tasks}")
    return 4 * rule.memories * len(sweep.runs) * problem.layout.size


def run_sweep(
    problem: Problem, sweep: Sweep, *, report: Callable[[int, int], None] = lambda done, total: None
) -> Trace:
    """Runs a sweep. A run whose error is no longer finite is stopped.

    ``report`` is called now and then with the number of iterations done and their total.

    Raises:
        Refused: A value lies outside its range.
    """
    fast, slow = _rules(problem, sweep)
    total = _affordable(fast, problem.tasks, sweep)
    looks = {round(total * i / _LOOKS) for i in range(1, _LOOKS + 1)}
    sampler = EpisodeSampler([run.seed for run in sweep.runs], problem.tasks, fast.draws)
    state = fast.init(problem.layout.pack([problem.start(run.seed) for run in sweep.runs]))
    seen, errors, spent = [0], [_look(problem, sweep, state.w)], 0.0
    alive = list(range(len(sweep.runs)))  # runs that have not diverged; only these are computed
    work = 0
    since = time.thread_time()
    for t in range(total):
        rule = slow if t >= 0.75 * total else fast
        state = rule.step(state, tuple(episodes(problem, sampler, rule, t)))
        work += len(alive)
        if t % _PAUSE and t + 1 not in looks:
            continue
        spent += time.thread_time() - since
        if t + 1 in looks:
            found = _look(problem, sweep, state.w)
            seen.append(_rows_after(fast, problem.tasks, t + 1))
            errors.append(np.full(len(sweep.runs), np.inf))
            errors[-1][alive] = found
            well = np.flatnonzero(np.isfinite(found))
            if 0 < len(well) < len(alive):
                alive = [alive[i] for i in well]
                state = tree_map_only(Tensor, itemgetter(torch.from_numpy(well)), state)
                some = sweep._replace(runs=tuple(sweep.runs[i] for i in alive))
                fast, slow = _rules(problem, some)
                sampler = EpisodeSampler([run.seed for run in some.runs], problem.tasks, fast.draws)
        report(t + 1, total)
        since = time.thread_time()
    w = _all(state.w, alive, len(sweep.runs))
    return Trace(w, seen, np.stack(errors, 1), total, spent / work)


def _all(w: Params, alive: Sequence[int], runs: int) -> Params:
    at = torch.tensor(alive)
    return {
        name: leaf.new_full((runs, *leaf.shape[1:]), torch.nan).index_copy_(0, at, leaf)
        for name, leaf in w.items()
    }


def _rules(problem: Problem, sweep: Sweep) -> tuple[MetaRule[Any], MetaRule[Any]]:
    """Returns the rule of the first three quarters of iterations, and that of the last."""
    each = sweep.tasks_per_step, sweep.batch_size, sweep.alpha, sweep.hessian
    arguments = RuleArguments(problem.loss, problem.matching, problem.tasks, *each)
    beta = torch.tensor([run.beta for run in sweep.runs])
    eta = torch.tensor([run.eta for run in sweep.runs])
    try:
        fast = sweep.method.build(arguments, beta, eta)
        slow = sweep.method.build(arguments, beta, eta / 10) if sweep.method.decays else fast
    except ValueError as error:
        raise Refused(str(error)) from error
    return fast, slow


def _rows_after(rule: MetaRule[Any], tasks: int, iterations: int) -> int:
    each = [sum((d.tasks or tasks) * sum(d.sizes) for d in draws) for draws in rule.cycle]
    whole, rest = divmod(iterations, len(each))
    return whole * sum(each) + sum(each[:rest])


def _affordable(rule: MetaRule[Any], tasks: int, sweep: Sweep) -> int:
    """Number of iterations within MAML's budget of rows; at least 1."""
    each = maml_batches(sweep.hessian) * sweep.batch_size
    budget = sweep.iterations * sweep.tasks_per_step * each
    done = budget // _rows_after(rule, tasks, len(rule.cycle)) * len(rule.cycle)
    while _rows_after(rule, tasks, done + 1) <= budget:
        done += 1
    return max(done, 1)


def _look(problem: Problem, sweep: Sweep, w: Params) -> npt.NDArray[np.float64]:
    """Returns the runs' errors on training tasks, infinite where a model is no longer finite."""
    found = problem.error(w, sweep.runs[0].method).double().numpy()
    fine = torch.stack([leaf.flatten(1).isfinite().all(1) for leaf in w.values()]).all(0).numpy()
    return np.where(np.isfinite(found) & fine, found, np.inf)


def episodes(
    problem: Problem, sampler: EpisodeSampler, rule: MetaRule[Any], t: int
) -> Iterator[Episode]:
    """Yields the episodes of iteration t of a rule."""
    for draw, (tasks, uniforms) in zip(rule.draws(t), sampler.draw(t), strict=True):
        x, y = problem.batch(tasks, uniforms)
        parts = zip(x.split(draw.sizes, 2), y.split(draw.sizes, 2), strict=True)
        yield Episode(tasks, tuple(parts))
