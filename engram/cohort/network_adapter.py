"""The network that a method is built for, made of a model."""

from collections.abc import Callable, Sequence
from functools import cache

from torch import Tensor

from engram.core.method import Network
from engram.core.types import Batch, Params
from engram.networks.base import Model


def network_of(model: Model, initial: Params, draw: Callable[[], Params]) -> Network:
    """Converts a model to the network of a method's ``Context``."""

    def represent(
        params: Params, batch: Batch, shift: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        inputs, _, *key = batch
        assert model.represent is not None  # for mypy: a network with a width has it
        found: tuple[Tensor, Tensor] = model.represent(
            params, inputs, *(key or [None]), shift, True
        )
        return found

    @cache
    def draws(count: int) -> Sequence[Params]:
        starts = [initial, *(draw() for _ in range(count - 1))]
        for other in starts[1:]:
            if all(leaf.equal(other[name]) for name, leaf in initial.items()):
                raise ValueError(
                    "model must be one whose start is drawn, got one that always starts alike"
                )
        return starts

    layers: dict[str, set[str]] = {}
    for name in initial:
        layers.setdefault(name.rpartition(".")[0], set()).add(name)
    return Network(
        initial=initial,
        represent=represent,
        width=model.width if model.represent is not None else 0,
        layers=tuple(map(frozenset, layers.values())),
        running=model.running,
        personal=model.personal,
        draws=draws,
    )
