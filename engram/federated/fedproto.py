"""FedProto: networks of the clients' own, which have the means of each class in common.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang. FedProto: Federated Prototype Learning across Heterogeneous
Clients. AAAI 2022. Below, equations and Alg. 1 are of that paper. The prototype of a class is the
mean representation of its rows; a representation is what a network's last layer takes.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from engram.aggregates import Aggregate, Update, weighted_mean
from engram.checks import require
from engram.federated.observed import SEEN, noted, observing, received, with_observed
from engram.models import Model, penalized_loss, represented
from engram.tasks import Task
from engram.tree import part
from engram.types import LocalRule, LossFn, Params, Scale

__all__ = [
    "PROTOTYPES",
    "fedproto",
    "fedproto_loss",
    "fedproto_server",
    "from_prototypes",
    "with_prototypes",
]

# Of each class, over all rows: the sum of its representations (classes, width), and its share of
# the rows (classes,). Their quotient is the prototype; a class that nobody has seen has share 0.
_SUMS, _SHARES = "sums", "shares"
PROTOTYPES: Final = frozenset({_SUMS, _SHARES})
"""Their names, without the mark of what is observed."""


def with_prototypes(model: Model, classes: int) -> Model:
    """Returns a network with the prototypes beside its parameters, as ``fedproto`` takes it.

    Args:
        model: The network, with a representation.
        classes: Number of classes.

    Raises:
        ValueError: If the network has no representation.
    """
    represented(model)
    return with_observed(model, {_SUMS: (classes, model.width), _SHARES: (classes,)})


def from_prototypes(w: Params, z: Tensor, targets: Tensor) -> tuple[Tensor, Params]:
    """Returns how far rows are from their classes' prototypes, and what they show of these.

    Args:
        w: The parameters, with the prototypes.
        z: The rows' representations, (k, width).
        targets: Their classes, (k,).

    Returns:
        The mean over rows of ``|z - c|^2 / width``, where a row whose class has no prototype c yet
        counts 0; and the sums and shares of classes, before division in (3).
    """
    known = received(w)
    shares = known[_SHARES]
    classes = torch.arange(shares.shape[0], device=z.device)
    rows = (targets[:, None] == classes).to(z)  # torch's one_hot and scatter_ know no vmap
    prototypes = known[_SUMS] / torch.where(shares > 0, shares, 1.0)[:, None]
    has_one = rows @ (shares > 0).to(z)
    far = (z - rows @ prototypes).square().mean(1) * has_one
    return far.mean(), {_SUMS: rows.T @ z / rows.shape[0], _SHARES: rows.mean(0)}


def fedproto_loss(model: Model, task: Task, strength: Scale) -> LossFn:
    """Builds the local loss (7): the task's mean loss plus lambda times the distance to prototypes.

    The paper compares means of classes; rows are compared here, as in the authors' code, which also
    divides by the width: lambda then means the same for all networks.

    Args:
        model: As ``with_prototypes`` returns it.
        task: What is learned; targets are classes.
        strength: lambda; >= 0, where 0 is the local model alone.

    Raises:
        ValueError: If ``strength`` is negative.
    """
    require(strength >= 0, "lambda", strength, "at least 0")

    def penalty(w: Params, z: Tensor, targets: Tensor) -> Tensor:
        far, seen = from_prototypes(w, z, targets)
        return strength * far + noted(w, seen)

    return penalized_loss(model, task, penalty)


def fedproto(loss: LossFn, *, eta: Scale) -> LocalRule:
    """Builds a client's local steps (Alg. 1, LocalUpdate), on a network of its own.

    What it returns is of the rows that its steps draw, each represented by the network before the
    step: a pass over all rows after the last step, as in Alg. 1, would cost as much as an epoch. A
    client is served by its network as it is: prototypes train its body, and its head is trained on
    it. The paper also allows the nearest prototype, which a class that nobody has seen lacks.

    Args:
        loss: As ``fedproto_loss`` builds it.
        eta: Step size; > 0.

    Raises:
        ValueError: If ``eta`` is not positive.
    """
    return observing(loss, eta=eta)._replace(served=part)


def fedproto_server() -> Aggregate:
    """Builds the server's part (6): prototypes of all clients' rows.

        c_j = sum_i |D_ij| c_ij / sum_i |D_ij|

    (6) divides by the number of clients that have class j, too, which would shrink the mean to
    nothing as clients become more: that factor is left out. Clients send sums and shares of their
    rows, which are merged by their numbers of rows. Classes that no client sent keep theirs.
    """

    def init(model: Params) -> Params:
        del model
        return {}

    def merge(model: Params, state: Params, updates: Sequence[Update]) -> tuple[Params, Params]:
        mean = weighted_mean(updates)

        def kept(name: str, leaf: Tensor) -> Tensor:
            sent = mean[SEEN + _SHARES] > 0
            return torch.where(sent.view(-1, *[1] * (leaf.ndim - 1)), mean[name], leaf)

        known = {name: kept(name, leaf) for name, leaf in model.items() if name.startswith(SEEN)}
        return mean | known, state

    return Aggregate(init=init, merge=merge, weighting="examples", additive=True)
