"""Robust centers of a round's models, which a minority of arbitrary models cannot move far.

Yin et al. Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML 2018.
Pillutla, Kakade, Harchaoui. Robust Aggregation for Federated Learning. IEEE Transactions on Signal
Processing 2022. Karimireddy, He, Jaggi. Learning from History for Byzantine Robust Optimization.
ICML 2021. Every model counts once, whatever weight is claimed for it. Models are given in the order
of their clients, so that every engine breaks ties in the same way.
"""

from collections.abc import Sequence

import numpy as np
import torch

from engram.core.types import Params


def trimmed_mean(models: Sequence[Params], cut: int) -> Params:
    """Returns the trimmed mean of each coordinate.

    With m <= cut arbitrary models among them, each coordinate of the result lies within the
    range of the others' values (Yin et al., Def. 2, with cut = beta * n).

    Args:
        models: n >= 1 models.
        cut: Number of values to leave out at either end; >= 0, where 0 gives the plain mean. If
            nothing would be left, the middle value (n odd) or two (n even) are: the median.
    """
    n = len(models)
    cut = min(cut, (n - 1) // 2)
    center = {}
    for name, first in models[0].items():
        values = np.stack([model[name].numpy(force=True) for model in models])
        values.sort(axis=0)  # along this axis ten times faster than torch
        middle = np.asarray(values[cut : n - cut].mean(axis=0))
        center[name] = torch.from_numpy(middle).to(first)
    return center


def median(models: Sequence[Params]) -> Params:
    """Returns the median of each coordinate: of an even number, the mean of the middle two.

    With a minority of arbitrary models, each coordinate lies within the range of the others'.
    """
    return trimmed_mean(models, len(models))


def geometric_median(models: Sequence[Params], steps: int = 64, smooth: float = 1e-6) -> Params:
    """Returns the geometric median of models: RFA.

    It is found by the smoothed Weiszfeld algorithm (Pillutla et al., Alg. 2, with equal weights),

        z <- sum_i b_i x_i / sum_i b_i,    b_i = 1 / max(nu, |x_i - z|)

    from the median of each coordinate, the lower one of two, where the paper begins with the mean:
    a model that lies at 1e30 then costs no step. With a minority of m arbitrary models it is within
    2 (n - m) / (n - 2 m) times the largest distance of the others from any point, of that point.

    Args:
        models: n >= 1 models.
        steps: The most steps; it stops before where z moves by less than nu.
        smooth: nu, in median distances of the models from the first z; > 0.
    """
    x = stacked(models)
    z = x.median(0).values
    least = max(smooth * float((x - z).norm(dim=1).median()), 1e-30)
    for _ in range(steps):
        weights = 1 / (x - z).norm(dim=1).clamp(min=least)
        before, z = z, weights @ x / weights.sum()
        if float((z - before).norm()) < least:
            break
    return like(z, models[0])


def centered_clipping(models: Sequence[Params], steps: int = 3) -> Params:
    """Returns a center that no model moves by more than its share of a radius.

        v <- v + (1 / n) sum_i (x_i - v) min(1, tau / |x_i - v|)

    (Karimireddy et al. 2021, Alg. 2), in so many steps from the median of each coordinate. The
    paper begins with the last round's center, clips momenta that clients keep from round to round,
    and leaves tau to be tuned. Here nothing is kept, so that any method's clients may come and go,
    and tau is the median of the models' distances from the start.
    """
    x = stacked(models)
    v = x.median(0).values
    radius = (x - v).norm(dim=1).median()
    for _ in range(steps):
        away = x - v
        scale = (radius / away.norm(dim=1).clamp(min=torch.finfo(x.dtype).tiny)).clamp(max=1)
        v = v + (scale[:, None] * away).mean(0)
    return like(v, models[0])


def stacked(models: Sequence[Params]) -> torch.Tensor:
    """Returns models as rows of a matrix in float64."""
    return torch.stack([torch.cat([x.flatten() for x in m.values()]) for m in models]).double()


def like(row: torch.Tensor, model: Params) -> Params:
    """Returns a row of ``stacked`` as a model like another."""
    parts = torch.split(row, [x.numel() for x in model.values()])
    return {n: part.view_as(x).to(x) for (n, x), part in zip(model.items(), parts, strict=True)}
