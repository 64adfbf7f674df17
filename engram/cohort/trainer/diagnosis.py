"""Likely causes of a client's non-finite model or loss: its rows, first model and first loss."""

from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice
from logging import getLogger
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from engram.cohort.round import Cohort
from engram.core.method import Objective
from engram.core.tree import is_finite, select
from engram.core.types import Batch, Params
from engram.scoring.metrics import IGNORED
from engram.scoring.tasks import Task

if TYPE_CHECKING:
    from engram.cohort.trainer.trainer import Trainer

_log = getLogger("flwr.engram")

_LARGE: Final = 100.0  # standardized numbers, and grey levels in [0, 1], are far below
_TARGETS: Final = 3  # different ones that are listed


class Seen(NamedTuple):
    """The rows that a client drew in a round."""

    x: Any  # inputs, (n, ...), as its network sees them
    y: Tensor  # targets, (n, ...), standardized where its loss takes them so
    numbers: Sequence[int]  # their positions among the client's training rows, from 0
    classes: int = 0  # number of classes, if targets are classes in 0..classes-1; else 0


def told_cause(trainer: "Trainer", task: Task, cohort: Cohort, client: int) -> str:
    """Returns likely causes of a client's non-finite slots after a round, as far as told.

    Under privacy, only the client's log has them. See ``cause_of``.
    """
    experiment, learner, data = trainer.experiment, trainer.learner, trainer.data
    if learner.guard is not None:
        return "its noise may be too large, or its step size"
    w = initial = learner.network.initial
    for slots, each in ((cohort.common, False), (cohort.own, True), (cohort.kept, True)):
        for slot, x in slots.items():
            if trainer.method.kinds[slot] == "model" and x.keys() == initial.keys():
                w = {n: leaf[0] for n, leaf in x.items()} if each else x
    batches = [select(batch, 0) for step in cohort.draws.each_step() for batch in step.batches]
    place = {row: at for at, row in enumerate(data.train.rows[client].tolist())}
    drawn = [r for r in sorted({*cohort.draws.rows[0].tolist()}) if r in place]  # no padding
    x, y = data.train.take(torch.tensor(drawn, device=data.train.y.device))
    rows = Seen(
        x,
        y if learner.standard is None else learner.standard.standardized(y),
        [place[row] for row in drawn],
        data.outputs if task.targets == "classes" and not task.own else 0,
    )
    learned = learner.objective(task, "in-turn")
    found = cause_of(learned, w, batches, rows, learner.network.running) or (
        "its inputs, targets, statistics and loss are finite and of usual size before the "
        f"first step: lower {' or '.join(experiment.network.step_sizes())}"
    )
    if not experiment.is_private:
        return found
    _log.warning("client %s: %s", data.names.get(client, client), found)
    return "its log says more"


def cause_of(
    learned: Objective,
    w: Params,
    batches: Sequence[Batch],
    rows: Seen,
    running: Collection[str] = (),
) -> str:
    """Describes likely causes of a client's non-finite model or loss.

    Returns:
        The first fault among: numbers that are not finite, targets that are no classes, a negative
        variance, a loss or gradient that is not finite before the first step; and the first
        among: large inputs, large targets, a large model. "" if there is none.
    """
    hard = chain(_of_rows(rows), _of_model(w, running), _of_loss(learned, w, batches))
    return "; ".join([*islice(hard, 1), *islice(_of_size(rows, w), 1)])


def _of_rows(rows: Seen) -> Iterator[str]:
    for leaf in _numbers(rows.x):
        if not leaf.isfinite().all():
            yield f"its inputs have NaN or infinity in {_place(~leaf.isfinite(), rows)}"
    if not rows.y.isfinite().all():
        yield f"its targets have NaN or infinity in {_place(~rows.y.isfinite(), rows)}"
    odd = (rows.y != IGNORED) & ((rows.y < 0) | (rows.y >= rows.classes))
    if rows.classes and odd.any():
        found = f"{int(rows.y[odd][0])} in {_place(odd, rows)}"
        yield f"its targets must be classes in 0..{rows.classes - 1}, got {found}"


def _of_model(w: Params, running: Collection[str]) -> Iterator[str]:
    for name, leaf in w.items():
        if not leaf.isfinite().all():
            yield f"the model that it began with is not finite in {name}"
        if name in running and name.endswith("running_var") and (leaf < 0).any():
            yield f"the model that it began with has a negative variance in {name}"


def _of_loss(learned: Objective, w: Params, batches: Sequence[Batch]) -> Iterator[str]:
    for batch in batches:
        value = learned.loss(w, batch)
        if not value.isfinite():
            yield f"its loss is {value.item():g} before the first step{_on(batch[1])}"
        if not is_finite(learned.gradient(w, batch)):
            yield f"its loss has no finite gradient before the first step{_on(batch[1])}"


def _of_size(rows: Seen, w: Params) -> Iterator[str]:
    for leaf in _numbers(rows.x):
        if _LARGE < (size := leaf.abs()).max() < inf:
            place = _place(size == size.max(), rows)
            yield f"its inputs reach {float(size.max()):.3g} in {place}: standardize them"
    if rows.y.is_floating_point() and _LARGE < (size := rows.y.abs()).max() < inf:
        yield f"its targets reach {float(size.max()):.3g}: scale them"
    largest, name = max((float(leaf.abs().max()), name) for name, leaf in w.items() if leaf.numel())
    if _LARGE < largest < inf:
        yield (
            f"the model that it began with reaches {largest:.3g} in {name}, by earlier steps or "
            "other clients"
        )


def _numbers(inputs: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(inputs) if leaf.is_floating_point()]


def _place(odd: Tensor, rows: Seen) -> str:
    """Names the row of the first such number, and its column if rows are lists of numbers."""
    row, *others = odd.nonzero()[0].tolist()
    column = f", column {others[0]}" if len(others) == 1 else ""
    return f"training row {rows.numbers[row]}{column}"


def _on(targets: Tensor) -> str:
    few = [f"{target:g}" for target in sorted(set(targets.flatten().tolist()))]
    return f", on a batch with targets {', '.join(few)}" if len(few) <= _TARGETS else ""
