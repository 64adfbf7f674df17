"""A network together with the arrays that a local rule has beside its parameters."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator

from engram.checks import require
from engram.models.base import Model
from engram.tree import marked, part
from engram.types import Companion, LocalRule, Params

__all__ = ["begun", "with_companions"]


def begun(
    params: Params,
    companions: tuple[Companion, ...],
    draw: Callable[[], Params] | None = None,
) -> Params:
    """Returns a network's parameters with the arrays beside them, as they start.

    Args:
        params: The parameters.
        companions: What is beside them.
        draw: Draws parameters anew; if it is None, what would start from another draw is a copy.
    """
    zeros = {name: torch.zeros_like(leaf) for name, leaf in params.items()}
    zero = next(iter(zeros.values())).new_zeros(())
    found = dict(params)
    for companion in companions:
        start = params if companion.copied else zeros
        if companion.numbers:
            start = dict.fromkeys(companion.numbers, zero)
        elif companion.drawn and draw is not None:
            start = draw()
        found |= marked(start, companion.mark)
    return found


def with_companions(model: Model, rule: LocalRule) -> Model:
    """Returns a network whose parameters are a rule's w.

    What it computes depends on its own parameters alone. Running statistics follow each model that
    the rule moves. Personal companions are personal parameters, beside those of the network; so are
    those that are exchanged, where the network's parameter is personal.

    Args:
        model: The network.
        rule: The rule, built on any loss of the network.

    Raises:
        ValueError: If models would start from other draws, but the network always starts alike.
    """
    companions = rule.companions
    if not companions:
        return model._replace(kept=rule.served, candidates=rule.candidates)

    def init(generator: Generator) -> Params:
        return begun(model.init(generator), companions, lambda: model.init(generator))

    start = init(Generator())
    for companion in companions:
        alike = companion.drawn and _equal(part(start, companion.mark), part(start))
        require(not alike, "model", "one that always starts alike", "one whose start is drawn")
    moved = start if rule.moved is None else rule.moved(start)
    copies = ["", *(companion.mark for companion in companions if companion.copied)]
    followed = [mark for mark in copies if part(moved, mark)]

    def on_part(function: Callable[..., Any] | None) -> Any:
        return function and (lambda params, *given: function(part(params), *given))

    def on_each(function: Callable[..., Params] | None) -> Any:
        def statistics(params: Params, *given: Any) -> Params:
            assert function is not None  # for mypy: it is asked for below
            found: Params = {}
            for mark in followed:
                found |= marked(function(part(params, mark), *given), mark)
            return found

        return function and statistics

    own = {
        companion.mark + name
        for companion in companions
        for name in (companion.numbers or part(start) if companion.personal else model.personal)
    }
    running = {mark + name for mark in copies for name in model.running}
    return model._replace(
        init=init,
        apply=on_part(model.apply),
        train=on_part(model.train),
        together=on_part(model.together),
        represent=on_part(model.represent),
        module=on_part(model.module),
        statistics=on_each(model.statistics),
        statistics_together=on_each(model.statistics_together),
        running=frozenset(running),
        personal=model.personal | own,
        kept=rule.served,
        candidates=rule.candidates,
    )


def _equal(one: Params, other: Params) -> bool:
    return all(torch.equal(leaf, other[name]) for name, leaf in one.items())
