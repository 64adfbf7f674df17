"""kNN-Per: a common model, and for each client a memory of its own rows beside it.

Marfoq, Neglia, Kameni, Vidal. Personalized Federated Learning through Local Memorization. ICML
2022. Below, equations are of that paper. A representation is what a network's last layer takes.
"""

import torch
from torch import Tensor

from engram.checks import require
from engram.types import Recall, Scale

__all__ = ["knn_per", "nearest"]


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


def knn_per(*, weight: float, k: int, scale: float) -> Recall:
    """Builds what serves a client: the mixture (9) of two estimates of a row's class.

        lambda p_knn + (1 - lambda) softmax(outputs)

    The first is ``nearest`` on the client's training rows, (6) to (8), by the common model's
    representations; the second is the common model's. What is returned are logarithms, of which
    softmax gives the mixture; a probability of 0 counts as the least positive normal number.

    Args:
        weight: lambda; in [0, 1], where 0 is the common model.
        k: Rows that vote; >= 1.
        scale: As for ``nearest``.

    Raises:
        ValueError: If a value is out of range.
    """
    require(0 <= weight <= 1, "lambda", weight, "in [0, 1]")
    require(k >= 1, "k", k, "at least 1")
    require(scale > 0, "scale", scale, "positive")

    def recall(
        outputs: Tensor, z: Tensor, memory: Tensor, targets: Tensor, counted: Tensor
    ) -> Tensor:
        classes = outputs.shape[-1]
        own = nearest(z, memory, targets, counted, classes=classes, k=k, scale=scale)
        mixed = weight * own + (1 - weight) * outputs.softmax(-1)
        return mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log()

    return recall
