"""The functions of a round: send, local step, merge. They know no messages and no files.

Strategies wrap them in messages; the ways to train a cohort and tuning call them directly.
"""

import math
from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from engram.core.method import FromMean, Method, Phase, Slots, Update, Weighting
from engram.core.slot_optimizers import Optimizer, State
from engram.core.slots import mean_of, pick
from engram.core.tree import select
from engram.core.types import Batch, Params


class Stepper(NamedTuple):
    """A local step of one client, or of clients that are stacked.

    Attributes:
        optimizer: Moves parameters along directions.
        factor: The schedule's factor of step sizes in this round.
        running: Names of running statistics, which no direction moves.
        statistics: ``(params, inputs, [key]) -> statistics`` after a forward pass, and parameters
            that this itself changes; None if the network has none.
        unreached: Names of parameters without a gradient, which no optimizer moves.
        missed: Whether each parameter has had no gradient in the step at hand, which objectives by
            plain autograd note; None if none notes it.
    """

    optimizer: Optimizer
    factor: float = 1.0
    running: Set[str] = frozenset()
    statistics: Callable[..., Params] | None = None
    unreached: Set[str] = frozenset()
    missed: dict[str, bool] | None = None

    def take(
        self, phase: Phase, work: Slots, states: State, batches: tuple[Batch, ...]
    ) -> tuple[Slots, State]:
        """Takes one step; ``states`` are the optimizer's by slot, empty before the first step.

        Running statistics of the slots that have directions follow the last batch, by the model
        before the step.
        """
        missed = {} if self.missed is None else self.missed
        missed.clear()
        directions, after = phase.direction(work, batches)
        still = self.running | self.unreached
        for slot, every in directions.items():
            all_ = {name: leaf for name, leaf in every.items() if name not in still}
            d = {name: leaf for name, leaf in all_.items() if not missed.get(name)}
            w = after[slot]
            if self.statistics is not None and self.running <= w.keys():
                inputs, _, *key = batches[-1]
                w = w | self.statistics(work[slot], inputs, *key)
            if d:
                moving = w if len(d) == len(w) else pick(w, d.keys())
                state = states.get(slot) or self.optimizer.init(pick(w, all_.keys()))
                moved, after_it = self.optimizer.update(moving, d, state, phase.eta * self.factor)
                w = w | moved
                if self.optimizer.remembers:
                    states = states | {slot: {key: state[key] | x for key, x in after_it.items()}}
            after = after | {slot: w}
        return after, states


def first_steps(phases: Sequence[Phase], steps: int) -> list[int]:
    """Returns the first step of each phase, from 0, in a round of ``steps``."""
    starts, at = [0], 0
    for phase in phases[:-1]:
        count = math.ceil(round(phase.fraction * steps, 9))  # 0.07 * 100 is more than 7
        at += min(count, max(steps - at - 1, 0))
        starts.append(at)
    return starts


def received_by(method: Method, server: Slots, client: int | None) -> Slots:
    """Returns the slots that a client receives; None: those that all receive alike."""
    common, own = method.server.send(server, [] if client is None else [client])
    return common if client is None else common | select(own, 0)


def merged(method: Method, server: Slots, updates: Sequence[Update]) -> Slots:
    """Returns the server's slots after a round."""
    merge = method.server.merge
    if isinstance(merge, FromMean):
        return merge.merge(server, mean_of(updates, merge.by))
    return merge.merge(server, [u._replace(weight=getattr(u, merge.by)) for u in updates])


def weighed(method: Method, by: Weighting) -> Method:
    """Returns the method with updates weighted by rows, or by clients."""
    merge = method.server.merge._replace(by=by)
    return method._replace(server=method.server._replace(merge=merge))
