"""The slots of a method by their names and shapes, without any data."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch.utils._pytree import tree_map

from engram.core.contract import Contract
from engram.core.method import Method, Objective, Served, Slots
from engram.core.slots import flat, pick, zeros
from engram.core.tree import select
from engram.core.types import Batch, Params

_MANY = 1000  # steps of a round whose number is not known


class Shapes(NamedTuple):
    """A method without data, and the slots of one client in a round, which have shapes only."""

    method: Method  # the method, whose loss is zero
    common: Slots  # slots that all clients receive alike
    own: Slots  # the client's own slots, with a leading axis of one client
    work: Slots  # slots that it works on
    sent: Slots  # slots that it sends
    kept: Slots  # slots that it keeps
    served: Served  # the models that serve it
    # ``steps -> gradients`` of batches in so many local steps; None if that is unknown.
    gradients: Callable[[int], int | None] = lambda steps: None

    @property
    def received(self) -> Slots:
        """The slots that a client receives."""
        return self.common | select(self.own, 0)

    @property
    def traffic(self) -> int:
        """Bytes that a client that trains receives and sends in a round, uncompressed."""
        return nbytes(self.received) + nbytes(self.sent)


def nbytes(slots: Slots) -> int:
    """Returns the bytes of the arrays of slots."""
    return sum(leaf.nbytes for leaf in flat(slots).values())


def _zeros(w: Params, batch: Batch, names: Any = None) -> Params:
    del batch
    return zeros(w if names is None else pick(w, names))


def _undifferentiated(function: Callable[..., Any], names: Any = None) -> Callable[..., Any]:
    def derivative(w: Any, *rest: Any) -> Any:
        some = w if names is None else pick(w, names)
        return tree_map(torch.zeros_like, some), function(w, *rest)[1]

    return derivative


WITHOUT_DATA: Final = Objective(
    loss=lambda w, batch: torch.zeros(()),
    gradient=_zeros,
    hessian_product=lambda w, batch, v: zeros(v),
    criterion=lambda outputs, batch: torch.zeros(()),
    differentiate=_undifferentiated,
)
"""A loss of zero, on which servers build methods: they take no derivatives."""


def shapes_of(contract: Contract, steps: int = _MANY) -> Shapes:
    """Returns the slots of a client of a method that was built ``WITHOUT_DATA``.

    A round has so many ``steps``, of which each phase must have one.

    Raises:
        SlotFault: The method does not keep its contract.
    """
    method = contract.method
    contract.check_phases(steps)
    common, own = method.server.send(method.server.start, [0])
    received = common | select(own, 0)
    return Shapes(method, common, own, *contract.round(0, received, method.client.start, None, {}))


def gradients_of(made: Callable[[Objective], Method], work: Slots, batch: Any = ()) -> list[int]:
    """Returns the gradients in a local step of each phase; a Hessian product counts as two."""
    taken = 0

    def counted(function: Callable[..., Any], gradients: int = 1) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            nonlocal taken
            taken += gradients
            return function(*given)

        return call

    counting = WITHOUT_DATA._replace(
        gradient=counted(_zeros),
        hessian_product=counted(WITHOUT_DATA.hessian_product, 2),
        differentiate=lambda *given: counted(_undifferentiated(*given)),
    )
    found = []
    for phase in made(counting).client.phases:
        taken = 0
        phase.direction(work, (batch,) * phase.batches)
        found.append(taken)
    return found
