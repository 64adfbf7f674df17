"""Robust centers by distances between a round's models: Krum, and nearest-neighbor mixing.

Blanchard, El Mhamdi, Guerraoui, Stainer. Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent. NeurIPS 2017. Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan. Fixing by
Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity. AISTATS 2023.
"""

from collections.abc import Sequence

import torch

from engram.core.types import Params
from engram.guards.robust.centers import like, stacked, trimmed_mean


def krum(models: Sequence[Params], malicious: int) -> Params:
    """Returns the model that is nearest to its n - malicious - 2 nearest others.

    That is the model i with the smallest sum of ``|x_i - x_j|^2`` over them; of several, the
    first (Blanchard et al., Sec. 4). It withstands ``malicious`` arbitrary models if
    2 * malicious + 2 < n. With fewer models it still returns one, by one neighbor at least.
    ``malicious`` is the number of models that may be arbitrary.
    """
    scores = _krum_scores(stacked(models), malicious).tolist()
    return models[min(range(len(models)), key=scores.__getitem__)]


def multi_krum(models: Sequence[Params], malicious: int) -> Params:
    """Returns the mean of the ``nearest`` models (Blanchard et al., Sec. 4, m = n - f)."""
    return like(stacked(models)[nearest(models, malicious)].mean(0), models[0])


def nearest(models: Sequence[Params], malicious: int) -> list[int]:
    """Returns the indices, ascending, of the n - malicious models with the smallest scores of Krum.

    Of equal scores, the first models. Models need not have one mean: of f = ``malicious`` arbitrary
    ones, each that is among them lies within ``D sqrt((n - f - 2) / (n - 2 f - 1))`` of another
    one, where D is the largest distance of two others. For one of these is left out then, whose
    score is (n - f - 2) D^2 at most; and of the arbitrary one's n - f - 2 nearest, n - 2 f - 1 are
    others. But of f or fewer models far from the rest, none may be among them.
    """
    order = _krum_scores(stacked(models), malicious).argsort(stable=True)
    chosen: list[int] = order[: max(1, len(models) - malicious)].sort().values.tolist()
    return chosen


def nearest_mixing(models: Sequence[Params], malicious: int) -> Params:
    """Returns the trimmed mean of mixtures, by nearest-neighbor mixing: NNM.

    For each model, its mixture is the mean of the n - malicious models that are nearest to it, with
    itself among them (Allouah et al., Alg. 2). See ``mixtures``.

    As many values as models may be arbitrary are left out at either end.
    """
    return trimmed_mean(mixtures(models, malicious), malicious)


def mixtures(models: Sequence[Params], malicious: int) -> list[Params]:
    """Returns the mean of the n - malicious models nearest to each one.

    Of any n - f models x_i with the mean x', where f is ``malicious``, the mixtures y_i lie closely
    around the mean, whatever the others are (Allouah et al., Lemma 1):

        mean_i |y_i - x'|^2 <= 8 f / (n - f) mean_i |x_i - x'|^2
    """
    flat = stacked(models)
    far = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = far.sort(dim=1, stable=True).indices[:, : max(1, len(flat) - malicious)]
    return [like(flat[some].mean(0), models[0]) for some in nearest.sort(dim=1).values]


def _krum_scores(flat: torch.Tensor, malicious: int) -> torch.Tensor:
    """Returns each model's sum of squared distances to its n - malicious - 2 nearest others."""
    n = len(flat)
    squares = torch.cdist(flat, flat).square().fill_diagonal_(torch.inf)
    nearest = squares.sort(dim=1).values[:, : min(max(1, n - malicious - 2), n - 1)]
    return nearest.sum(dim=1)
