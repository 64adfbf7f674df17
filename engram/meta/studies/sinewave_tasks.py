"""Sinewave regression (Sec. 6.1 of the MOML paper): 25 tasks to learn from, 5 unseen ones."""

import math
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from engram.cohort.dense_gradients import SQUARED_ERROR
from engram.cohort.stacked_models import Layout, dense_stacks, expand, outputs
from engram.core.streams import Stream, torch_generator
from engram.core.types import Batch, Params
from engram.meta.fine_tune import fine_tune
from engram.meta.studies.problem import Problem
from engram.networks.built_in import build_model

ALPHA: Final = 0.01  # of every adaptation, in training and in testing
SHOTS: Final = 10
UNSEEN: Final = (
    # (A, phi): numpy.random.RandomState(i).uniform(1, 5), then uniform(pi/5, pi), for i = 0..4,
    # which are the paper's ("randomly sampled"), by its authors' code.
    (3.1952540157, 2.4257854582),
    (2.6680880188, 2.4386914402),
    (2.7439796086, 0.6934782583),
    (3.2031916103, 2.4080881285),
    (4.8681193561, 2.0036631818),
)
_SETS: Final = 20  # sets of shots, over which tests average to depend less on chance


class UnseenError(NamedTuple):
    """Results of meta-models on unseen tasks."""

    errors: Tensor  # mean squared error after adapting to each task, (r, 5)
    fits: Tensor  # outputs of the adapted models for 100 inputs from -5 to 5, (r, 5, 100)


class Sinewave(Problem):
    """The tasks y = A sin(x + phi), x in [-5, 5], and an MLP of two hidden layers of 40."""

    def __init__(self) -> None:
        """Draws the rows that errors are measured on, the same for all runs and methods."""
        amplitudes = torch.arange(1.0, 6.0).repeat_interleave(5)
        phases = (torch.arange(1.0, 6.0) * math.pi / 5).repeat(5)
        self._waves = torch.stack([amplitudes, phases], 1)
        self._unseen = torch.tensor(UNSEEN)
        self.tasks = len(self._waves)
        self.network = build_model("mlp", input_shape=(1,), outputs=1, hidden=(40, 40))
        self.layout = Layout.of(self.start(0))
        self.loss = dense_stacks(self.layout, SQUARED_ERROR)
        self._adapt = fine_tune(self.loss, lr=ALPHA, steps=1)
        self._adapt_to_unseen = fine_tune(self.loss, lr=ALPHA, steps=10)
        generator = torch_generator(0, Stream.EVALUATION)
        self._seen_points = torch.rand(self.tasks, 200, generator=generator)
        self._shots = torch.rand(_SETS * len(UNSEEN), SHOTS, generator=generator)
        self._points = torch.rand(_SETS * len(UNSEEN), 100, generator=generator)

    def batch(self, tasks: Tensor, uniforms: Tensor) -> Batch:
        """Returns rows of training tasks."""
        return _rows(self._waves[tasks], uniforms)

    def error(self, w: Params, method: str) -> Tensor:
        """Returns Eq. (1), with 100 rows of each task to adapt to and 100 others to score on."""
        del method
        runs = len(next(iter(w.values())))
        x, y = _rows(self._waves.expand(runs, -1, -1), self._seen_points.expand(runs, -1, -1))
        adapted = self._adapt(expand(w, self.tasks), (x[:, :, :100], y[:, :, :100]))
        return self.loss(adapted, (x[:, :, 100:], y[:, :, 100:])).mean(1)

    def measure(self, w: Params, method: str) -> list[dict[str, Any]]:
        """Returns each run's errors on the unseen tasks, and the curves fitted to them."""
        del method
        found = self.test(w)
        pairs = zip(found.errors.tolist(), found.fits.tolist(), strict=True)
        return [{"tests": errors, "fits": fits} for errors, fits in pairs]

    def test(self, w: Params) -> UnseenError:
        """Adapts to each unseen task in 10 steps on 10 rows, and scores on 100 others.

        Errors are averages over 20 such adaptations, each of the meta-model to other rows; the
        fitted curves are those of the first.
        """
        runs, each = len(next(iter(w.values()))), len(UNSEEN)
        waves = self._unseen.repeat(_SETS, 1).expand(runs, -1, -1)
        shots = _rows(waves, self._shots.expand(runs, -1, -1))
        points = _rows(waves, self._points.expand(runs, -1, -1))
        adapted = self._adapt_to_unseen(expand(w, _SETS * each), shots)
        errors = self.loss(adapted, points).view(runs, _SETS, each).mean(1)
        x, _ = _rows(self._unseen.unsqueeze(0), torch.linspace(0, 1, 100).expand(1, each, -1))
        first = {name: leaf[:, :each] for name, leaf in adapted.items()}
        fits = outputs(self.layout, first, x.expand(runs, -1, -1, -1))
        return UnseenError(errors, fits[..., 0])


def _rows(waves: Tensor, uniforms: Tensor) -> Batch:
    """Returns inputs and targets (..., k, 1) of waves (..., 2), for uniforms (..., k) in [0, 1)."""
    x = 10 * uniforms - 5
    amplitude, phase = waves.unsqueeze(-2).unbind(-1)
    return x.unsqueeze(-1), (amplitude * torch.sin(x + phase)).unsqueeze(-1)
