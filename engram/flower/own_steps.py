"""A method's own steps on batches of a user's, in place of a loop."""

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

from torch import Tensor, nn

from engram.core.checks import must
from engram.core.method import Method, Slots
from engram.core.personal_parameters import build
from engram.core.rounds import Stepper, first_steps
from engram.core.slot_optimizers import State, optimizer_of
from engram.flower.module import Loss
from engram.flower.replay import OUTPUTS, Traits
from engram.flower.side import Side
from engram.settings.errors import Refused


def own_steps(
    side: Side, kept: Slots, traits: Traits, batches: Iterable[Any], loss: Loss | None,
    criterion: Callable[[Tensor, Tensor], Tensor] | None, steps: int | None, optimizer: str,
) -> tuple[Slots, int, Method]:  # fmt: skip
    """Returns the work after a method's steps, their number, and the method with the objective.

    Raises:
        Refused: As ``Session.train`` says.
    """
    module = side.module
    if loss is None and criterion is not None:
        objective, forward = module.objective_by(criterion), nn.Module.__call__
        drawn: Iterator[Any] = iter(batches)
    elif criterion is None and loss is not None:
        if traits.lacks in OUTPUTS:
            words = "looks at outputs or rows: call session.train(batches, criterion=...)"
            raise Refused(f"{side.asked.method} {words}")
        objective, forward = module.objective(loss), loss
        drawn = ((batch, None) for batch in batches)
    else:
        raise Refused("train must be given one of loss and criterion")
    module.net.train()
    method: Method = build(side.settings, side.context._replace(objective=objective))
    client, statistics = method.client, module.statistics(forward)
    stepper = Stepper(optimizer_of(optimizer), 1.0, module.running, statistics)
    each, initial = client.phases[0].batches, bool(client.initial_rows)
    if steps is None:
        if not isinstance(batches, Sized):
            raise Refused(must("steps", None, "their number, of batches without a length"))
        steps = (len(batches) - initial) // each
    starts = first_steps(client.phases, steps)
    states: list[State] = [{} for _ in client.phases]
    work = client.begin(side.received, kept, next(drawn) if initial else None)
    for h in range(steps):
        at = sum(start <= h for start in starts) - 1
        taken = tuple(next(drawn) for _ in range(each))
        work, states[at] = stepper.take(client.phases[at], work, states[at], taken)
    return work, steps, method
