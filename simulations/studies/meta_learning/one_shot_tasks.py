"""One-shot classification (Sec. 6.2 of the MOML paper): tasks whose classes no other task has."""

from typing import Any, Final

import torch
from torch import Tensor
from torch.func import vmap

from engram.checks import require
from engram.dense import CROSS_ENTROPY, FIRST, Examples, dense_loss, logits
from engram.meta.fine_tune import fine_tune
from engram.meta.protonet import prototypical_logits, prototypical_loss
from engram.models import build_model
from engram.span import Span
from engram.stacks import Layout, dense_stacks, stacked_loss
from engram.types import Batch, Params
from federation.data.few_shot import FewShot
from federation.errors import DataError, Refused
from federation.streams import Stream, torch_generator
from simulations.studies.meta_learning.problem import Problem
from simulations.studies.meta_learning.published import Split

_STEPS: Final = 20  # of adapting in testing: of the authors' code, for Omniglot
_ROOM: Final = 2**26  # bytes that episodes may take at once
_CLASSES, _SEEN, _UNSEEN = 1, 2, 3  # keys of what is drawn for evaluation


class OneShot(Problem):
    """Disjoint groups of classes, and an MLP of two hidden layers of 40.

    An episode is one image of each class of a task, to adapt to, and others to be scored on.
    Tasks and episodes are the same for all runs and methods, whatever their seeds.

    Attributes:
        ways: Classes of a task. The rows of a batch must be a multiple of it.
        loss: Cross-entropy of flat parameters, to indicators.
        matching: ProtoNet's; what the network puts out is what it embeds to.
        layout: The network's.
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
            split: How many tasks to make of them.
            query: Images of each class that an episode is scored on; >= 1.
            episodes: How many the test has, spread over the test tasks; >= 1.
            lr: Step size of adapting, where methods are scored; > 0.
            steps: How many full-batch steps that is; >= 0.

        Raises:
            DataError: There are too few classes, or images of each, for that.
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
        self.network = build_model(
            "mlp", input_shape=(self._pool.shape[1],), outputs=self.ways, hidden=(40, 40)
        )
        self.layout = Layout.of(self.start(0))
        self.loss = dense_stacks(self.layout, CROSS_ENTROPY)
        self.matching = stacked_loss(prototypical_loss(self._embed))
        self._adapt = fine_tune(dense_loss(self.network.dense_layers), lr=lr, steps=steps)
        self._match = vmap(prototypical_logits(self.network.apply), in_dims=(None, 0, 0))

    def batch(self, tasks: Tensor, uniforms: Tensor) -> Batch:
        """Returns rows of training tasks: inputs (r, b, k, pixels), indicators (r, b, k, ways).

        Row i is of class ``i mod ways``: batches that are a multiple of ``ways`` have as many rows
        of every class. Which image of the class it is, is drawn with replacement.

        Raises:
            Refused: The rows are no such multiple.
        """
        k = uniforms.shape[-1]
        if k % self.ways:
            raise Refused(
                f"batch-size must be a multiple of {self.ways}, the classes of a task, got {k} rows"
            )
        classes = tasks.unsqueeze(2) * self.ways + torch.arange(k) % self.ways
        images = (uniforms * self._each).long()  # below self._each: uniforms are multiples of 2^-24
        x = self._images(classes * self._each + images)
        return x, self._indicators(k).expand(*uniforms.shape, -1)

    def error(self, w: Params, method: str) -> Tensor:
        """Returns the share (r,) of images of training tasks that are taken for another class."""
        return 1 - self._accuracies(w, method, self._seen).mean(1)

    def measure(self, w: Params, method: str) -> list[dict[str, Any]]:
        """Returns each run's accuracies in the episodes of test tasks."""
        return [{"tests": accuracies} for accuracies in self.test(w, method).tolist()]

    def test(self, w: Params, method: str) -> Tensor:
        """Returns the accuracy (r, episodes) of each meta-model in each episode of test tasks.

        Every episode begins with the meta-models w, which are left alone. ProtoNet's compare images
        with those shown; the others are adapted to them.
        """
        return self._accuracies(w, method, self._unseen)

    def _episodes(self, tasks: Tensor, query: int, generator: torch.Generator) -> Tensor:
        """Draws images (e, (1 + query) ways), row i of class i mod ways; none comes twice."""
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
        """Returns what a model says of other images once it is adapted, in every episode anew.

        Its first layers are held by what they move in the span of the few images shown.
        """
        x, y = support
        frame = Span(model[FIRST], x, held=0)
        rows = frame.see(0, self.ways)
        w = {name: leaf.expand(len(x), *leaf.shape) for name, leaf in model.items()}
        w = self._adapt(w | {FIRST: rows.fit(frame.origin())}, Examples(rows, y))
        return logits(w, frame.see_others(others), self.network.dense_layers)

    def _embed(self, w: Params, x: Tensor) -> Tensor:
        return self.network.apply(self.layout.one(w), x)

    def _images(self, rows: Tensor) -> Tensor:
        """Returns images (..., pixels) as the network sees them, in [0, 1]."""
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
