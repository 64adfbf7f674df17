"""FedPAC: representations that agree by class, under a mix of all clients' heads for each client.

Xu, Tong, Huang. Personalized Federated Learning with Feature Alignment and Classifier
Collaboration. ICLR 2023. Below, Alg. 1 is that paper's. Prototypes are those of FedProto: a class's
mean representation, which is what a network's last layer takes.
"""

from collections.abc import Sequence, Set
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import nnls
from torch import Tensor

from engram.aggregates import Aggregate, Update
from engram.checks import require
from engram.federated.fedproto import (
    PROTOTYPES,
    fedproto_server,
    from_prototypes,
    with_prototypes,
)
from engram.federated.observed import SEEN, noted, noting, with_observed
from engram.federated.parts import first_steps, only
from engram.federated.tailored import meet, nobody, or_common
from engram.models import Model, penalized_loss
from engram.tasks import Task
from engram.tree import marked
from engram.types import LocalRule, LossFn, Params, Scale

__all__ = ["aligned_loss", "collaboration", "fedpac_server", "head_and_body", "with_statistics"]

Array = npt.NDArray[np.float64]

# A client's statistics under the network that it was sent, over the rows that its head's steps
# draw: sums (classes, width) and shares (classes,) as for prototypes, and the mean |z|^2, ().
_SUMS, _SHARES, _SQUARE = "sent-sums", "sent-shares", "sent-square"
_HEADS: Final = "heads/"  # in the state, before the names of all clients' heads: (N, ...)


def with_statistics(model: Model, classes: int) -> Model:
    """Returns a network with prototypes and statistics beside its parameters.

    Raises:
        ValueError: If the network has no representation.
    """
    shapes = {_SUMS: (classes, model.width), _SHARES: (classes,), _SQUARE: ()}
    return with_observed(with_prototypes(model, classes), shapes)


def aligned_loss(model: Model, task: Task, strength: Scale) -> LossFn:
    """Builds the local loss: the task's mean loss plus lambda times the distance to prototypes.

    Args:
        model: As ``with_statistics`` returns it.
        task: What is learned; targets are classes.
        strength: lambda; >= 0. A step of the head alone does not see it.

    Raises:
        ValueError: If ``strength`` is negative.
    """
    require(strength >= 0, "lambda", strength, "at least 0")

    def penalty(w: Params, z: Tensor, targets: Tensor) -> Tensor:
        far, seen = from_prototypes(w, z, targets)
        sums, shares = seen.values()
        sent = {_SUMS: sums, _SHARES: shares, _SQUARE: z.square().sum(1).mean()}
        return strength * far + noted(w, seen | sent)

    return penalized_loss(model, task, penalty)


def head_and_body(rule: LocalRule, head: Set[str], body: Set[str], share: float) -> LocalRule:
    """Returns a client's round (Alg. 1): it trains the head that it was sent, and then the body.

    Statistics are taken while the body is as it was sent, and prototypes while it moves: both of
    the rows that steps draw, each represented by the network before the step. Alg. 1 passes over
    all rows before and after, which would cost as much as two epochs.

    Args:
        rule: ``observing`` on ``aligned_loss``.
        head: The last layer's parameters.
        body: All others.
        share: Share of a round's steps for the head; in (0, 1).

    Raises:
        ValueError: If ``share`` is out of range.
    """
    require(share > 0, "share of the first steps", share, "positive")
    first = noting(only(rule, head), {_SUMS, _SHARES, _SQUARE})
    return first._replace(then=(first_steps(share), noting(only(rule, body), PROTOTYPES)))


def collaboration(variances: Array, means: Array) -> Array:
    """Returns the weights by which each of m clients mixes the heads of all.

    Those of client i minimize what a mixture is expected to lose on its rows, over weights that are
    at least 0 and add up to 1: its variance, and its bias where others' rows look different,

        sum_j a_j^2 V_j + |sum_j a_j (M_i - M_j)|^2

    Args:
        variances: V, (m,): of a client's representations within its classes, by its number of rows.
        means: M, (m, ...): the means of its classes, each times the class's share of its rows.

    Returns:
        Shape (m, m), a row for each client.
    """
    flat, found = means.reshape(len(means), -1), []
    for own in flat:
        away = flat - own
        values, vectors = np.linalg.eigh(away @ away.T + np.diag(variances))
        roots = np.sqrt(np.maximum(values, 1e-12 * values.max() or 1.0))[:, None] * vectors.T
        # |A x|^2 + (1 - sum x)^2 over x >= 0 has its least in the direction of the weights: for
        # x = s a, where a adds up to 1, it is q / (1 + q) at the best s, with q = |A a|^2.
        x, _ = nnls(np.vstack([roots, np.ones(len(flat))]), np.append(np.zeros(len(flat)), 1.0))
        found.append(x / x.sum())
    return np.stack(found)


def fedpac_server(head: Set[str], clients: int) -> Aggregate:
    """Builds the server's part (Alg. 1): means of bodies and prototypes, and heads by client.

    A client that takes part has its head mixed anew with those of the same round, by
    ``collaboration``; it keeps that until it takes part again. One that never did is sent the mean
    of the heads, which is the common model's.

    Args:
        head: The last layer's parameters.
        clients: N, of the whole federation; >= 1.

    Raises:
        ValueError: If ``clients`` is out of range.
    """
    require(clients >= 1, "num-clients", clients, "at least 1")
    prototypes = fedproto_server()

    def init(model: Params) -> Params:
        heads = {name: model[name].expand(clients, *model[name].shape).clone() for name in head}
        return nobody(clients) | marked(heads, _HEADS)

    def merge(model: Params, state: Params, updates: Sequence[Update]) -> tuple[Params, Params]:
        plain = [update._replace(params=_without_statistics(update.params)) for update in updates]
        merged, _ = prototypes.merge(_without_statistics(model), {}, plain)
        cohort, known = meet(state, updates)
        weights = torch.from_numpy(_weights(updates))
        state = state | known
        for name in head:
            sent = torch.stack([update.params[name] for update in updates])
            mixed = torch.tensordot(weights.to(sent), sent, dims=1)
            heads = state[_HEADS + name]
            state |= {_HEADS + name: heads.index_copy(0, torch.tensor(cohort), mixed)}
        return model | merged, state

    def tailored(model: Params, state: Params, asked: Sequence[int]) -> Params:
        own = {name: state[_HEADS + name][list(asked)] for name in sorted(head)}
        return or_common(own, model, state, asked)

    return Aggregate(
        init=init, merge=merge, weighting="examples", additive=False, tailored=tailored
    )


def _without_statistics(w: Params) -> Params:
    return {
        n: leaf for n, leaf in w.items() if n not in (SEEN + _SUMS, SEEN + _SHARES, SEEN + _SQUARE)
    }


def _weights(updates: Sequence[Update]) -> Array:
    """Returns the weights of heads by what clients returned.

    A client with too few steps to train its head first has told nothing, and keeps its head.
    """
    sums, shares, squares = (
        torch.stack([update.params[SEEN + name] for update in updates]).double().numpy()
        for name in (_SUMS, _SHARES, _SQUARE)
    )
    drawn = shares.sum(1)  # of a client's steps, the share for its head: what the means are over
    told, weights = np.flatnonzero(drawn > 0), np.eye(len(updates))
    if len(told):
        means = sums[told] / drawn[told, None, None]
        within = squares[told] / drawn[told] - np.square(means).sum((1, 2))
        rows = np.array([update.weight for update in updates])[told]
        weights[np.ix_(told, told)] = collaboration(np.maximum(within, 0.0) / rows, means)
    return weights
