"""Mixtures of several models' predictions, with their loss, and votes of a client's own rows.

Votes are for the classes of others that lie near: Marfoq, Neglia, Kameni, Vidal. Personalized
Federated Learning through Local Memorization. ICML 2022, of which the equations are. A
representation is the input of a network's last layer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.utils._pytree import tree_leaves

from engram.core.checks import require
from engram.core.method import Neighbors, Served
from engram.core.types import Batch, LossFn, Params, Scale, Weighted
from engram.scoring.metrics import Targets
from engram.scoring.survival_losses import hazard_logits, log_survival


def mixture(targets: Targets, outputs: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Returns outputs of a mixture, (c, q, ...), of the kind that each model's are.

    That is the logarithm of ``sum_m pi_m p_m`` for the distributions over classes or tokens, the
    log-odds for labels and for hazards in cells of time, and the mean ``sum_m pi_m x_m`` for values
    and for a single log hazard.
    Each of m models has outputs (c, q, ...) for c clients, whose weights pi, (c, m), add up to 1.
    """
    each = torch.stack(list(outputs), 1)
    pi = weights.reshape(*weights.shape, *[1] * (each.ndim - 2))
    if targets == "values" or (targets == "times" and each.shape[-1] == 1):
        return (pi * each).sum(1)
    if targets == "times":
        return hazard_logits((log_survival(each) + pi.log()).logsumexp(1))
    if targets == "labels":
        odds = ((logsigmoid(sign * each) + pi.log()).logsumexp(1) for sign in (1, -1))
        return next(odds) - next(odds)
    axis = 3 if targets == "classes" else -1  # a row may have several classes, behind that axis
    return (each.log_softmax(axis) + pi.log()).logsumexp(1)


def row_losses(loss: LossFn, params: Params, batch: Batch) -> Tensor:
    """Returns a batch's losses row by row, (k,), in training."""
    rows, like = len(tree_leaves(batch)[0]), next(iter(params.values()))
    return loss(params, Weighted(batch, torch.eye(rows, dtype=like.dtype, device=like.device)))


def loss_of(served: Served, loss: LossFn, batch: Batch) -> Tensor:
    """Returns the mean loss of a client that is served by several models.

    Without weights it is the least of the models' losses; otherwise the mean over rows of
    ``-log sum_m pi_m exp(-loss_m)``, the mixture's negative log-likelihood.
    """
    if served.weights is None:
        return torch.stack([loss(model, batch) for model in served.models]).amin(0)
    rows = torch.stack([row_losses(loss, model, batch) for model in served.models])
    return -(served.weights.log()[:, None] - rows).logsumexp(0).mean()


# --- Votes of rows --------------------------------------------------------------------------------


def nearest(
    z: Tensor,
    memory: Tensor,
    targets: Tensor,
    counted: Tensor,
    *,
    classes: int,
    k: int,
    scale: Scale,
) -> Tensor:
    """Returns the probabilities (c, q, classes) of classes by the k nearest rows, (8).

        p_y  proportional to  sum over the k nearest rows i of class y of exp(-|z - z_i| / scale)

    Args:
        z: Representations of queries, (c, q, d), of c clients.
        memory: Representations of the clients' rows, (c, n, d).
        targets: Their classes, (c, n).
        counted: Which of them count, (c, n); at least one of each client.
        classes: Number of classes.
        k: How many rows vote; all, if a client has fewer.
        scale: Distance at which a vote weighs 1/e of one at no distance; > 0.
    """
    # Distances of their own differences: products of large numbers would cancel.
    far = torch.cdist(z, memory, compute_mode="donot_use_mm_for_euclid_dist")
    far = far.masked_fill(~counted[:, None], torch.inf)
    distances, rows = far.topk(min(k, far.shape[-1]), largest=False)
    votes = torch.softmax(-distances / scale, -1)  # where all are far, too: they add up to 1
    chosen = targets[:, None].expand(-1, z.shape[1], -1).gather(-1, rows)
    return votes.new_zeros(*z.shape[:2], classes).scatter_add(-1, chosen, votes)


def with_votes(
    votes: Neighbors, outputs: Tensor, z: Tensor, memory: Tensor, targets: Tensor, counted: Tensor
) -> Tensor:
    """Returns the mixture (9) of two estimates of a row's class, (c, q, classes).

        lambda p_knn + (1 - lambda) softmax(outputs)

    The first is ``nearest`` on a client's rows, (6) to (8). What is returned are logarithms, of
    which softmax gives the mixture; a probability of 0 counts as the least positive normal number.

    Args:
        votes: lambda, k and scale.
        outputs: Of a network, (c, q, classes).
        z: As for ``nearest``, as the other arguments.
        memory: Representations of the clients' rows.
        targets: Their classes.
        counted: Which of them count.
    """
    classes = outputs.shape[-1]
    mine = nearest(z, memory, targets, counted, classes=classes, k=votes.k, scale=votes.scale)
    mixed = votes.weight * mine + (1 - votes.weight) * outputs.softmax(-1)
    return mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log()


def check_votes(votes: Neighbors) -> None:
    """Raises ``ValueError`` if a value is out of range."""
    require(0 <= votes.weight <= 1, "lambda", votes.weight, "in [0, 1]")
    require(votes.k >= 1, "k", votes.k, "at least 1")
    require(votes.scale > 0, "scale", votes.scale, "positive")
