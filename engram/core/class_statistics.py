"""Class statistics: the mean representation z of each class, in a form that can be averaged.

Over a set of rows: ``sums`` (classes, width) is, for each class, the sum of z over the class's rows
divided by the number of all rows; ``shares`` (classes,) is the class's share of the rows. Their
quotient is the class's mean, its *prototype*. Both can be averaged over clients, weighted by rows;
means can not.
"""

import torch
from torch import Tensor

from engram.core.method import Claim, Network
from engram.core.types import Params


def empty(network: Network, classes: int) -> Params:
    """Returns the statistics of no rows: every class has share 0."""
    sums, shares = network.zeros(classes, network.width), network.zeros(classes)
    return {"sums": sums, "shares": shares}


def indicators(targets: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns indicators of classes, (k, classes); torch's ``one_hot`` does not run in vmap."""
    return (targets[:, None] == torch.arange(classes, device=targets.device)).to(dtype)


def class_statistics(z: Tensor, targets: Tensor, classes: int) -> Params:
    """Returns the statistics of a batch of representations z (k, width) and classes (k,)."""
    rows = indicators(targets, classes, z.dtype)
    return {"sums": rows.T @ z / len(z), "shares": rows.mean(0)}


def distance_to_class_means(z: Tensor, targets: Tensor, known: Params) -> Tensor:
    """Returns the mean over rows of ``|z - m|^2 / width``, where m is the mean of a row's class.

    A row whose class has no mean counts 0.
    """
    shares = known["shares"]
    rows = indicators(targets, shares.shape[0], z.dtype)
    means = known["sums"] / torch.where(shares > 0, shares, 1.0)[:, None]
    distances: Tensor = (z - rows @ means).square().mean(1) * (rows @ (shares > 0).to(z))
    return distances.mean()


def updated(old: Params, new: Params) -> Params:
    """Replaces the statistics of the classes that ``new`` has rows of."""
    some = new["shares"] > 0
    return {
        "sums": torch.where(some[:, None], new["sums"], old["sums"]),
        "shares": torch.where(some, new["shares"], old["shares"]),
    }


def claims_of(*slots: str) -> dict[str, Claim]:
    """Returns ``Method.claims`` of slots of class statistics."""
    names: tuple[Claim, ...] = ("sums", "shares")
    return {f"{slot}/{name}": name for slot in slots for name in names}
