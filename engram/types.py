"""The vocabulary every pure algorithm is written in.

Parameters are flat name-to-tensor dictionaries, as ``dict(module.named_parameters())``
gives them. Everything here is a pytree to ``torch.func``, so a function of these types
can be differentiated with ``grad`` and batched over clients with ``vmap``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

__all__ = [
    "Batch",
    "Candidates",
    "Companion",
    "LocalRule",
    "LossFn",
    "Params",
    "Recall",
    "Scale",
    "Weighted",
]

Params = dict[str, Tensor]
Batch = Any  # whatever a loss looks at besides parameters; (inputs, targets) for a network
LossFn = Callable[[Params, Batch], Tensor]  # mean loss of one batch, shape (); see `Weighted`
Scale = float | Tensor  # a step size or weight; a tensor holds one for each of stacked models
Recall = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Predictor of c clients by rows of their own, ``-> outputs (c, q, ...)``. It is given a model's
outputs (c, q, ...) and representations (c, q, d) of queries; and of the clients' rows
representations (c, n, d), targets (c, n, ...), and which of them count (c, n)."""


class Weighted(NamedTuple):
    """A batch whose rows count differently: its loss is the sum of rows' losses by their weights.

    Attributes:
        batch: As a loss takes it, of k rows.
        weights: Shape (k,), for a loss of shape (); or (k, m), for m sums, shape (m,).
    """

    batch: Batch
    weights: Tensor


class Candidates(NamedTuple):
    """Several models that a client is served by.

    Attributes:
        models: Which.
        weights: Their weights in a mixture of what they predict, (len(models),), which add up to 1.
            None: the client is served by the one that has the least loss on its training rows.
    """

    models: tuple[Params, ...]
    weights: Tensor | None = None


class Companion(NamedTuple):
    """Arrays beside a network's parameters, which a rule has in its w: one for each, or numbers.

    Attributes:
        mark: What stands before a parameter's name in the name of its array; ends with a slash.
        personal: Whether each client keeps its own ones; if not, clients and server exchange them.
        copied: Whether they start as the parameters do, as a second model; if not, at zero.
        drawn: Whether that model starts from another draw of the parameters.
        numbers: The names of numbers, arrays of shape (), that it has in place of arrays like the
            parameters; they start at zero.
    """

    mark: str
    personal: bool
    copied: bool
    drawn: bool = False
    numbers: tuple[str, ...] = ()


class LocalRule(NamedTuple):
    """One client's part of a federated algorithm, as pure functions.

    No function keeps state between calls, draws random numbers, or branches on a tensor's
    value, so each runs unchanged for one client or, under ``torch.func.vmap``, for many. One that
    is ``affine`` also runs on stacked parameters as it is, in any affine coordinates.

    Attributes:
        init: ``(w, batch) -> u``, a client's memory before its first step. ``batch``
            is None unless ``needs_initial_batch``.
        step: ``(w, u, batches) -> (w, u)``, one local step; ``batches`` holds
            ``batches_per_step`` independent batches.
        batches_per_step: Number of independent batches that one ``step`` consumes.
        needs_initial_batch: Whether ``init`` reads data.
        state_is_model: Whether u is a personal model that the client could serve. If so, it has
            the names and shapes of w, beside ``moments``; if not, it may be empty.
        reads_state: Whether ``step`` reads u; if not, it may start from any u.
        affine: Whether the rule uses parameters only in these ways: it takes derivatives by
            ``engram.derivatives``, mixes models with weights that add up to 1 (differences of
            models: to 0), and adds gradients and differences scaled by numbers. Weight decay is
            not affine: it scales a model.
        single_use: Whether ``init`` and ``step`` take exactly one gradient of each batch, and no
            other derivative.
        direction: ``(w, u, batches) -> (d, u)``, the direction of a step, which moves w to
            ``w - eta d``; None if no optimizer can take its place.
        eta: That step size.
        moments: ``w -> u``, the part of the state that an optimizer adds, before the first step;
            None if there is none. See ``engram.optimizers``.
        companions: Arrays that w has beside the network's parameters. ``engram.tree.part`` tells
            them apart.
        moved: ``w -> w``, the part of w that directions have; None if that is all of it.
        finish: ``(w, u) -> w``, what is made of both after a client's last step; None for w.
        then: ``(turn, rule)``: of a client's n steps in a round, ``turn(n)`` are this rule's, and
            those after them the other one's, which has the same ``init`` and state; None where all
            are this one's.
        prepares: Whether its own steps only prepare those of ``then``: neither an optimizer nor a
            schedule bears on them.
        served: ``w -> params``, the model of its own that w gives a client, which is neither w's
            network nor u; None if there is none.
        candidates: The several models that w has for a client, whether or not it has trained; None
            if there are none.
    """

    init: Callable[[Params, Batch | None], Params]
    step: Callable[[Params, Params, tuple[Batch, ...]], tuple[Params, Params]]
    batches_per_step: int = 1
    needs_initial_batch: bool = False
    state_is_model: bool = False
    reads_state: bool = True
    affine: bool = False
    single_use: bool = False
    direction: Callable[[Params, Params, tuple[Batch, ...]], tuple[Params, Params]] | None = None
    eta: Scale = 0.0
    moments: Callable[[Params], Params] | None = None
    companions: tuple[Companion, ...] = ()
    moved: Callable[[Params], Params] | None = None
    finish: Callable[[Params, Params], Params] | None = None
    then: "tuple[Callable[[int], int], LocalRule] | None" = None
    prepares: bool = False
    served: Callable[[Params], Params] | None = None
    candidates: Callable[[Params], Candidates] | None = None
