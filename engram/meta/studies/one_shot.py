"""One-shot classification: Table 4 of the MOML paper, with the published values."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from rich.table import Table
from torch import Tensor
from torch.func import vmap

from engram.cli.console import new_table, plus_minus
from engram.cohort.dense_gradients import CROSS_ENTROPY, FIRST, Examples, dense_loss, logits
from engram.cohort.span_coordinates import Span
from engram.cohort.stacked_models import Layout, dense_stacks, stacked_loss
from engram.core.checks import require
from engram.core.streams import Stream, torch_generator
from engram.core.types import Batch, Params
from engram.meta.meta_gradient import fine_tune
from engram.meta.protonet import prototypical_logits, prototypical_loss
from engram.meta.studies.few_shot import WAYS, FewShot, load_few_shot
from engram.meta.studies.jobs import Case, by_name, cells, draw_convergence, figures_of, measure
from engram.meta.studies.published import ONE_SHOT_PUBLISHED, ONE_SHOT_STEPS, SPLITS, TABLE_4, Split
from engram.meta.studies.settings import OneShotSettings
from engram.meta.studies.sweep import Problem
from engram.networks.built_in import build_model
from engram.scoring.intervals import deviation, mean_and_error
from engram.settings.errors import DataError, Refused
from engram.simulations.job_pool import Pool, Row
from engram.studies.study import Report

# Of eta, on which the paper is silent; below, nothing moves.
GRID: Final = (1.0, 0.3, 0.1, 0.05, 0.02)
_CAPTION: Final = """\
Accuracy in % after one image of each class of an unseen task, from a fresh copy
of the model in every episode: mean over episodes and seeds ± half the 95 %
interval over episodes; s.d. over seeds; the paper's, which is something else
(its model goes on learning from episode to episode); on training tasks"""
_STEPS: Final = 20  # adaptation steps in tests, as in the authors' code for Omniglot
_ROOM: Final = 2**26  # bytes that simultaneous episodes may take
_CLASSES, _SEEN, _UNSEEN = 1, 2, 3  # keys of the random streams of evaluation


class OneShot(Problem):
    """Disjoint groups of classes, and an MLP of two hidden layers of 40.

    An episode is one image of each class of a task, to adapt to, and others to be scored on.
    Tasks and episodes are the same for all runs and methods, whatever their seeds.

    The loss is the cross-entropy, for one-hot targets; ProtoNet's embeddings are the network's
    outputs. A batch's rows must be a multiple of ``ways``, the classes of a task.
    """

    def __init__(
        self,
        data: FewShot,
        split: Split,
        *,
        query: int = 5,
        episodes: int = 200,
        lr: float,
        steps: int = _STEPS,
    ) -> None:
        """Makes the tasks, and draws the episodes that errors and accuracies are measured on.

        Args:
            data: The images.
            split: Numbers of training and test tasks.
            query: Images of each class that an episode is scored on; >= 1.
            episodes: Number of test episodes, spread over the test tasks; >= 1.
            lr: Step size of adaptation when methods are scored; > 0.
            steps: Number of these full-batch steps; >= 0.

        Raises:
            DataError: There are too few classes, or images of each.
            ValueError: A number lies outside its range.
        """
        require(min(split) >= 1, "number of training and test tasks", tuple(split), "at least 1")
        require(query >= 1, "query", query, "at least 1")
        require(episodes >= 1, "episodes", episodes, "at least 1")
        _check(data, split, query)
        self.ways, self.tasks = data.ways, split.training
        self._each = data.images.shape[1]
        count = data.ways * sum(split)
        order = torch.randperm(len(data.images), generator=_generator(_CLASSES))
        self._pool = torch.from_numpy(data.images[order[:count].numpy()]).flatten(0, 1)
        self._seen = self._episodes(torch.arange(split.training), query, _generator(_SEEN))
        unseen = torch.arange(episodes) % split.test + split.training
        self._unseen = self._episodes(unseen, query, _generator(_UNSEEN))
        pixels = (self._pool.shape[1],)
        self.network = build_model("mlp", input_shape=pixels, outputs=self.ways, hidden=(40, 40))
        self.layout = Layout.of(self.start(0))
        self.loss = dense_stacks(self.layout, CROSS_ENTROPY)
        self.matching = stacked_loss(prototypical_loss(self._embed))
        self._adapt = fine_tune(dense_loss(self.network.dense_layers), lr=lr, steps=steps)
        self._match = vmap(prototypical_logits(self.network.apply), in_dims=(None, 0, 0))

    def batch(self, tasks: Tensor, uniforms: Tensor) -> Batch:
        """Returns training rows: inputs (r, b, k, pixels), one-hot targets (r, b, k, ways).

        Row i is of class ``i mod ways``, so that batches have as many rows of every class. Images
        of the class are drawn with replacement.

        Raises:
            Refused: k is not a multiple of ``ways``.
        """
        k = uniforms.shape[-1]
        if k % self.ways:
            wanted = f"a multiple of {self.ways}, the classes of a task"
            raise Refused(f"batch-size must be {wanted}, got {k} rows")
        classes = tasks.unsqueeze(2) * self.ways + torch.arange(k) % self.ways
        images = (uniforms * self._each).long()  # below self._each: uniforms are multiples of 2^-24
        x = self._images(classes * self._each + images)
        return x, self._indicators(k).expand(*uniforms.shape, -1)

    def error(self, w: Params, method: str) -> Tensor:
        """Returns the error rate (r,) on images of training tasks."""
        return 1 - self._accuracies(w, method, self._seen).mean(1)

    def measure(self, w: Params, method: str) -> list[dict[str, Any]]:
        """Returns each run's accuracies in the episodes of test tasks."""
        return [{"tests": accuracies} for accuracies in self.test(w, method).tolist()]

    def test(self, w: Params, method: str) -> Tensor:
        """Returns the accuracy (r, episodes) of each meta-model in each episode of test tasks.

        Every episode starts from the meta-models w, which are not changed. ProtoNet's compare
        images with those shown; the others are adapted to them.
        """
        return self._accuracies(w, method, self._unseen)

    def _episodes(self, tasks: Tensor, query: int, generator: torch.Generator) -> Tensor:
        """Draws images (e, (1 + query) ways) without replacement; row i is of class i mod ways."""
        uniforms = torch.rand(len(tasks), self.ways, self._each, generator=generator)
        images = uniforms.argsort(-1)[..., : 1 + query]
        classes = tasks.unsqueeze(1) * self.ways + torch.arange(self.ways)
        rows: Tensor = (classes.unsqueeze(2) * self._each + images).mT.flatten(1)
        return rows

    def _accuracies(self, w: Params, method: str, episodes: Tensor) -> Tensor:
        score = self._match if method == "protonet" else self._adapted
        leaves, rows = self.layout.unpack(w), episodes.shape[1]
        runs = range(len(leaves[FIRST]))
        models = [{name: leaf[r] for name, leaf in leaves.items()} for r in runs]
        truth = torch.arange(rows - self.ways) % self.ways
        found = []
        for some in torch.split(episodes, max(1, _ROOM // (8 * rows * self._pool.shape[1]))):
            x = self._images(some)
            shown, others = x[:, : self.ways], x[:, self.ways :]
            support = shown, self._indicators(self.ways).expand(len(x), -1, -1)
            taken = [score(model, support, others).argmax(-1) for model in models]
            found.append((torch.stack(taken) == truth).float().mean(-1))
        return torch.cat(found, 1)

    def _adapted(self, model: Params, support: Batch, others: Tensor) -> Tensor:
        """Returns an adapted model's logits for other images, adapting anew in each episode.

        First layers are represented by their coordinates in the span of the few images shown.
        """
        x, y = support
        frame = Span((model[FIRST],), x)
        rows = frame.see(0, self.ways)
        w = {name: leaf.expand(len(x), *leaf.shape) for name, leaf in model.items()}
        w = self._adapt(w | {FIRST: rows.fit(frame.base(0))}, Examples(rows, y))
        return logits(w, frame.see_others(others), self.network.dense_layers)

    def _embed(self, w: Params, x: Tensor) -> Tensor:
        return self.network.apply(self.layout.one(w), x)

    def _images(self, rows: Tensor) -> Tensor:
        x = self._pool.index_select(0, rows.flatten())
        return x.float().mul_(1 / 255).view(*rows.shape, -1)

    def _indicators(self, rows: int) -> Tensor:
        return torch.eye(self.ways).repeat(rows // self.ways, 1)


def _check(data: FewShot, split: Split, query: int) -> None:
    need, (classes, each, _) = data.ways * sum(split), data.images.shape
    if classes < need:
        raise DataError(
            f"{data.name}: {split.training} training and {split.test} test tasks of {data.ways} "
            f"classes need {need} classes, got {classes}"
        )
    if each < 1 + query:
        raise DataError(
            f"{data.name}: an episode needs {1 + query} images of each class, 1 to adapt to and "
            f"{query} to be scored on, got {each}"
        )


def _generator(key: int) -> torch.Generator:
    return torch_generator(0, Stream.EVALUATION, key)


def work(settings: OneShotSettings, pool: Pool) -> list[Row]:
    """Trains and tests all methods."""
    # The authors' alpha and test step size; ours adapt more to a single shot.
    alpha, lr = (0.01, 0.05) if settings.published else (0.5, 0.5)
    name, size = settings.dataset, WAYS[settings.dataset]  # one row of each class
    steps = ONE_SHOT_PUBLISHED[name] if settings.published else ONE_SHOT_STEPS
    make = functools.partial(_tasks, name, settings.data_dir.absolute(), lr)
    return measure(settings, Case(make, (size,), alpha, {size: steps}, GRID), pool)


def _tasks(dataset: str, data_dir: Path, lr: float) -> OneShot:
    return OneShot(load_few_shot(dataset, data_dir), SPLITS[dataset], lr=lr)


def report(settings: OneShotSettings, done: Sequence[Row]) -> Report:
    """Makes the table and the plot."""
    rows = summarize(done, settings.dataset)
    picture = draw_convergence(done, "share of wrong answers", log=False)
    return Report([_CAPTION, _table(rows)], {"rows": rows}, {"convergence.png": picture})


def summarize(done: Sequence[Row], dataset: str) -> list[Row]:
    """Returns a row for each method, over its seeds.

    It has the entries of ``figures_of``, and ``accuracy``, the mean over episodes and seeds, with
    half the width of its 95 % interval, and the standard deviation over seeds. All seeds are tested
    in the same episodes, so an episode counts once, with its mean over seeds. They are None if a
    run diverged, and published values are None where there are none.
    """
    return [_row(dataset, name, runs) for (_, name), runs in by_name(done).items()]


def _row(dataset: str, name: str, runs: Sequence[Row]) -> Row:
    found = np.array([run["tests"] for run in runs], dtype=float)
    accuracy, width = mean_and_error(found.mean(0), 1.96)
    mean, spread = TABLE_4[dataset].get(name, (None, None))
    figures = figures_of(name, runs)
    fine = not figures["diverged"]
    return {
        **figures,
        "accuracy": float(accuracy) if fine else None,
        "accuracy-interval": float(width) if fine and width is not None else None,
        "accuracy-std": deviation(found.mean(1)) if fine else None,
        "published": mean and mean / 100,
        "published-std": spread and spread / 100,
    }


def _table(rows: Sequence[Row]) -> Table:
    found = new_table(["method"], ["beta", "eta", "accuracy", "± seeds", "paper", "train", "ms"])
    for row in rows:
        found.add_row(
            *cells(row, _percent(row["accuracy"], row["accuracy-interval"])),
            _percent(row["accuracy-std"]),
            _percent(row["published"], row["published-std"]),
            "-" if row["diverged"] else _percent(1 - row["train-error"]),
            f"{row['ms']:.2f}",
        )
    return found


def _percent(share: float | None, error: float | None = None) -> str:
    return plus_minus(share and 100 * share, error and 100 * error, 1)
