"""A client's training: ``with engram.flower.client(msg, context, net)`` around a loop."""

from collections.abc import Callable, Iterable
from logging import getLogger
from typing import Any, Self

import torch
from flwr.app import Message
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from engram.core.method import Slots
from engram.core.personal_parameters import build
from engram.core.rounds import first_steps
from engram.core.slots import pick
from engram.core.tree import is_finite
from engram.core.types import Params
from engram.flower.module import Loss
from engram.flower.own_steps import own_steps
from engram.flower.repeats import Batches
from engram.flower.replay import Asked, Token, refusal, traits_of
from engram.flower.side import USUAL, Side, Site
from engram.flower.twins import Twin, check_optimizer
from engram.settings.errors import Refused

_log = getLogger("flwr.engram")


class Session(Side):
    """A client's training in a round.

    Args:
        msg: As for ``Side``.
        context: As for ``Side``.
        net: As for ``Side``.
        steps: Steps that the optimizer takes in the block, for methods with several phases.
        loss: ``(net, batch) -> ()``, for methods that choose models before the first step.
        first: The batch by which these methods choose.
        site: As for ``Side``.

    Attributes:
        traits: The method's use of the loss.
        result: The slots that it sends and keeps, after the block.
    """

    def __init__(
        self, msg: Any, context: Any, net: Any, *, steps: int | None = None,
        loss: Loss | None = None, first: Any = None, site: Site = USUAL,
    ) -> None:  # fmt: skip
        super().__init__(msg, context, net, site)
        self.kept, _ = self.recall(self.asked.round)
        self.traits = traits_of(self.settings, self.context, self.received, self.kept)
        self.result: tuple[Slots, Slots] | None = None
        self.again, self.batching, self.gradients = False, False, 0
        self._steps, self._loss, self._first = steps, loss, first
        # Of each phase, the step with which it begins; of the first alone, if steps are not known.
        self._starts = first_steps(self.method.client.phases, steps) if steps else [0]
        self._tokens = tuple(Token() for _ in range(self.method.client.phases[0].batches))
        self._work: Slots = {}  # until the method begins
        self._loaded: Params = {}
        self._seen: list[tuple[Params, Params]] = []
        self._twins: dict[str, Twin] = {}
        self._moving: tuple[Optimizer, Params, Slots, Slots] | None = None
        self._checked: Optimizer | None = None
        self._taken = 0
        self._handles: list[Any] = []

    # --- The block ------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self.traits.begins and self._loss is not None:
            real = self.module.objective(self._loss)
            made = build(self.settings, self.context._replace(objective=real))
            self._work = made.client.begin(self.received, self.kept, (self._first,))
        if not (self.traits.lacks or (self.traits.begins and not self._work)):
            self._proceed()
        self._entered = dict(self._loaded)
        if not self.traits.plain or not self._work:
            self._handles = [
                register_optimizer_step_pre_hook(self._before),
                register_optimizer_step_post_hook(self._after),
            ]
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        for handle in self._handles:
            handle.remove()
        if kind is None:
            self.result = self._end()

    def _end(self) -> tuple[Slots, Slots]:
        name, work, phases = self.asked.method, self._work, self.method.client.phases
        if not work or (self.traits.lacks and not self._taken):
            raise refusal(name, self.traits.lacks or self.traits.begins)
        if self.traits.plain and not self._taken:  # the loop trained as it would without Engram
            now = self.module.read()
            if all(x.equal(self._entered[n]) for n, x in now.items()):
                raise Refused(f"{name}: net must be trained in the block, got it as it was")
            work = work | {self.traits.plain: now}
        elif not self._taken:
            expected = "one optimizer of torch.optim must take steps of all of net in the block"
            raise Refused(f"{name}: {expected}, got none: train net itself, not a copy of it")
        if self._steps and self._taken != self._steps and len(phases) > 1:
            if self._taken <= self._starts[-1]:
                words = f"steps must be those of the block, {self._taken}, got {self._steps}"
                raise Refused(f"{name}: {words}: its last phase had none")
            _log.warning("%s: %d steps in place of %d", name, self._taken, self._steps)
        sent, kept = self.method.client.end(self.received, work)
        if not is_finite((sent, kept)):
            raise Refused(f"{name}: training must stay finite; lower the optimizer's step size")
        if kept:
            self.memory.save(kept, self.asked.round)
        return sent, kept

    def reply(self, num_examples: int, **metrics: float) -> Message:
        """Returns the reply, with the number of rows that the update stands for, and metrics."""
        return self.message(num_examples, metrics, self.update(num_examples))

    def update(self, rows: float) -> Slots:
        """Returns the update of so many rows, as the client's guards let it leave."""
        if self.result is None:
            raise Refused("reply must follow the block, got no round that came to its end")
        return self.guarded(self.result[0], rows)

    # --- Steps of the user's optimizer ------------------------------------------------------

    def _proceed(self) -> tuple[Slots, Slots] | None:
        """Runs the method as far as gradients are there; loads the point of the next one."""
        client = self.method.client
        if not self._work:
            token = Token() if client.initial_rows else None
            begun = self.replay.run(client.begin, self.received, self.kept, token)
            if begun is None:
                self._show(self.replay.asked.point)
                return None
            self._work = begun
        phase, step = self._phase, None
        points = self.traits.points[phase][len(self.replay.answers) :]
        if points:  # known beforehand: the method need not run to say it
            slot, i = points[0]
            self.replay.asked = Asked(self._work[slot], self._tokens[i])
        else:
            direction = client.phases[phase].direction
            step = self.replay.run(direction, self._work, self._tokens)
        if step is None:
            self._show(self.replay.asked.point)
        return step

    @property
    def _phase(self) -> int:
        return sum(start <= self._taken for start in self._starts) - 1

    def _show(self, point: Params) -> None:
        """Loads arrays into the network, but for those that are there already."""
        self.module.load({n: x for n, x in point.items() if self._loaded.get(n) is not x})
        self._loaded = dict(point)

    def _before(self, optimizer: Optimizer, args: Any, named: Any) -> Any:
        """Torch's hook before a step: ``.grad`` becomes the method's direction."""
        if self._moving is not None or not (mine := self._mine(optimizer)):
            return None  # of a twin, or of another network
        if optimizer is not self._checked:
            self._check(optimizer)
            self._checked = optimizer
        closure = named.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            there = any(p.grad is not None for p in mine.values())
            if there and not self._answer(optimizer, mine) and self.again and not self.batching:
                how = "iterate session.batches(loader), with a mod engram.flower.batches(loader)"
                words = f"takes {self.traits.again} gradients of a batch: {how}"
                raise Refused(f"{self.asked.method} {words}")
            return None
        while True:
            with torch.enable_grad():
                value = closure()
            if self._answer(optimizer, mine) or not self.again:
                return (args[0], lambda value=value: value), {}

    def _answer(self, optimizer: Optimizer, mine: Params) -> bool:
        """Takes the gradients that are there; returns whether a step is complete."""
        self.gradients, grads = self.gradients + 1, Params()
        for name, leaf in self.module.leaves.items():
            taken = mine[name].grad if name in mine else None
            grads[name] = torch.zeros_like(leaf).float() if taken is None else taken.float()
        if self.module.running:
            statistics = self.module.read(self.module.running)
            self._seen.append((self._loaded, statistics))
            self._loaded = self._loaded | statistics
        token = self.replay.asked.batch
        self.replay.answers.append(grads)
        step = self._proceed()
        self.again = step is None and self.replay.asked.batch is token
        directions, after = step or ({}, self._work)
        moved = {s: d for s, d in directions.items() if d.keys() & self.module.learned}
        trained: Params = next(iter(moved.values()), {})  # by the optimizer, others by twins
        needed = self.module.learned if step is None else trained.keys() & self.module.learned
        if lacking := needed - mine.keys():
            words = f"one optimizer must hold all that is trained, got none of {min(lacking)}"
            how = "give client(...) the part that it holds, or take a method of plain steps"
            raise Refused(f"{self.asked.method}: {words}: {how}")
        for name, p in mine.items():  # without a gradient, an optimizer leaves them as they are
            p.grad = trained[name].to(p.dtype) if name in trained else None
        if step is None:
            return False
        self._moving = optimizer, mine, moved, after
        if moved:
            self._show(after[next(iter(moved))])
        return True

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        """Torch's hook after a step: moves the other slots, and asks for the next gradient."""
        if self._moving is None or self._moving[0] is not optimizer:
            return
        mine, moved, after = self._moving[1:]
        for i, (slot, d) in enumerate(moved.items()):
            names = d.keys() & self.module.learned
            if i:
                if slot not in self._twins:
                    self._twins[slot] = Twin(optimizer)
                w = self._twins[slot].step(optimizer, mine, after[slot], pick(d, names))
            else:
                w = self.module.read(names)
                self._loaded = self._loaded | w
            found = after[slot] | w
            if self.module.running and self.module.running <= found.keys():
                found |= self._statistics(slot)
            after = after | {slot: found}
        for p in mine.values():
            p.grad = None
        self._work, self._taken, self._seen, self._moving = after, self._taken + 1, [], None
        self._proceed()

    def _statistics(self, slot: str) -> Params:
        """Returns the running statistics of the pass at a slot's model."""
        for point, statistics in self._seen:
            if all(x is self._work[slot].get(n) for n, x in point.items()):
                return statistics
        words = "moves a model at which no loss is taken: batch norm's statistics are not known"
        raise Refused(f"{self.asked.method} {words}; call session.train(batches, loss)")

    def _mine(self, optimizer: Optimizer) -> Params:
        """Returns the network's arrays that an optimizer holds."""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return {n: p for n, p in self.module.leaves.items() if id(p) in held}

    def _check(self, optimizer: Optimizer) -> None:
        """Refuses an optimizer that takes other steps than the method's."""
        name = self.asked.method
        if (not self._work and self.traits.begins) or self.traits.lacks:
            raise refusal(name, self.traits.lacks or self.traits.begins)
        check_optimizer(optimizer, self.method, name)
        if self.traits.phases > 1 and not self._steps:
            words = f"has {self.traits.phases} phases: give client(..., steps=) the block's steps"
            raise Refused(f"{name} {words}, such as epochs * len(loader)")

    def batches(self, loader: Iterable[Any]) -> Batches:
        """Returns a loader's batches, each as often as the method takes gradients of it."""
        return Batches(self, loader)

    # --- Engram's own steps -------------------------------------------------------------------

    def train(
        self, batches: Iterable[Any], loss: Loss | None = None, *,
        criterion: Callable[[Tensor, Tensor], Tensor] | None = None,
        steps: int | None = None, optimizer: str = "sgd",
    ) -> None:  # fmt: skip
        """Runs the method's own steps, in place of a loop.

        Args:
            batches: Batches. A method that reads rows before its first step reads the first one;
                with some methods a step takes several.
            loss: ``(net, batch) -> ()``.
            criterion: ``(outputs, targets) -> ()`` in its place, of batches ``(inputs, targets)``:
                for methods that look at representations or classes.
            steps: Number of steps, if batches have no length.
            optimizer: ``sgd``, ``momentum``, ``adam`` or ``adamw``, with the method's ``eta``.

        Raises:
            Refused: There is not one of loss and criterion, or the method needs the criterion;
                or the number of steps is not known.
        """
        self._work, self._taken, self.method = own_steps(
            self, self.kept, self.traits, batches, loss, criterion, steps, optimizer
        )
        network = self.module.leaves.keys()
        whole = (x for x in self._work.values() if isinstance(x, dict) and x.keys() == network)
        self._show(next(whole, {}))
