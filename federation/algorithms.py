"""The federated algorithms by name: what a client does, and what the server does with it.

To add one, write its rule in ``engram/``, and one entry here. Everything else (settings, engines,
evaluation, the contract tests) finds it by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from engram.aggregates import Aggregate, mean, mixed_mean
from engram.meta.fedavg import fedavg
from engram.meta.local_moml import local_moml, per_fedavg
from engram.meta.pfedme import pfedme
from engram.types import LocalRule, LossFn

if TYPE_CHECKING:
    from federation.experiment import Experiment

__all__ = ["ALGORITHMS", "TABLES", "Algorithm"]


class Algorithm(NamedTuple):
    """A federated algorithm.

    Attributes:
        meaning: What it is, in a few words.
        rule: Builds the client's part from the loss and the settings.
        aggregate: Builds the server's part from the settings.
    """

    meaning: str
    rule: Callable[[LossFn, Experiment], LocalRule]
    aggregate: Callable[[Experiment], Aggregate]


ALGORITHMS: Final[dict[str, Algorithm]] = {
    "local-moml": Algorithm(
        "memory-based meta-learning; memory reset or carried",
        lambda loss, e: local_moml(loss, alpha=e.alpha, beta=e.beta, eta=e.eta, hessian=e.hessian),
        lambda e: mean(),
    ),
    "per-fedavg": Algorithm(
        "meta-learning without memory: local-moml with beta = 1",
        lambda loss, e: per_fedavg(loss, alpha=e.alpha, eta=e.eta, hessian=e.hessian),
        lambda e: mean(),
    ),
    "pfedme": Algorithm(
        "personal models held near the common one by a proximal term",
        lambda loss, e: pfedme(
            loss, alpha=e.alpha, eta=e.eta, strength=e.lambda_, inner_steps=e.inner_steps
        ),
        lambda e: mixed_mean(e.server_mix),
    ),
    "fedavg": Algorithm(
        "one common model, fine-tuned by each client",
        lambda loss, e: fedavg(loss, eta=e.eta),
        lambda e: mean("examples"),
    ),
}

TABLES: Final[dict[str, str]] = {
    "molar": "one exchange: a linear model for each site's table, most of it shared by all sites",
    "molar-bandit": "one exchange a batch: sites choose among arms, and learn from each other",
    "meta-ban": "one turn a round: clients choose by a network that adapts to who agrees",
}
"""Algorithms for tables, which train no network by rounds, and what they are in a few words."""
