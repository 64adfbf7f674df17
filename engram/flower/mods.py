"""Methods in an app that does not know of them: ``ClientApp(mods=[engram.flower.mod])``.

The app loads ``msg.content["arrays"]``, trains it by an optimizer of ``torch.optim``, and replies
with its ``state_dict``, as Flower's examples do. What it loads is then the model that the method
begins with, or, for an evaluation, the one that serves the client; and what it replies becomes the
method's update. For methods with several gradients of a batch, its loop iterates
``batches(loader)``.
"""

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import torch
from flwr.app import Context, Message, MessageType, MetricRecord
from torch.optim import Optimizer

from engram.core.types import Params
from engram.flower.messages import CONSTANT, ENGRAM, MethodRecord, from_records, to_records
from engram.flower.module import StandIn
from engram.flower.served import Serving
from engram.flower.session import Session
from engram.flower.side import USUAL, Site
from engram.settings.errors import Refused
from engram.wire.flower import to_params, to_record
from engram.wire.wire import ARRAYS, METRICS

App = Callable[[Message, Context], Message]
_SESSION: Final[ContextVar[Session | None]] = ContextVar("session", default=None)


def batches(loader: Iterable[Any]) -> Iterable[Any]:
    """Returns a loader's batches, each as often as the method of the app's mod takes gradients.

    Without the mod, and with other strategies, it is the loader itself.
    """
    session = _SESSION.get()
    return loader if session is None else session.batches(loader)


@dataclass(frozen=True)
class Mod:
    """A mod of Flower's. Messages of other strategies pass.

    Attributes:
        site: The client's own terms.
    """

    site: Site = USUAL

    def __call__(self, msg: Message, context: Context, call_next: App) -> Message:
        """Has the app answer a message for the method.

        Raises:
            Refused: The method needs more than a mod.
        """
        if ENGRAM not in msg.content:
            return call_next(msg, context)
        asked = MethodRecord.read(msg.content)
        if CONSTANT not in msg.content:
            words = "engram.flower.client in its app"
            raise Refused(f"a network with many arrays that are not trained needs {words}")
        constant, received = to_params(msg.content[CONSTANT]), from_records(msg.content)
        net = StandIn(_arrays(asked, received), {*asked.running})
        if msg.metadata.message_type == MessageType.EVALUATE:
            side = Serving(msg, context, net, site=self.site)
            if len(side.served.models) > 1 or side.served.shift is not None:
                words = "serves by no single network: take engram.flower.served in the app"
                raise Refused(f"{asked.method} {words}")
            with side:
                msg.content[ARRAYS] = to_record(side.module.read() | constant)
                return side.marked(call_next(msg, context))
        session = _HiddenLoop(msg, context, net, site=self.site)
        traits = session.traits
        if traits.level == "train" or traits.begins or traits.phases > 1:
            words = "needs engram.flower.client in the app, and not a mod alone"
            raise Refused(f"{asked.method} {words}")
        if session.module.running and traits.gradients > 1:
            words = "with batch norm needs engram.flower.client in the app"
            raise Refused(f"{asked.method} {words}")
        with session:
            msg.content[ARRAYS] = to_record(session.module.read() | constant)
            token = _SESSION.set(session)
            try:
                reply = call_next(msg, context)
            finally:
                _SESSION.reset(token)
            if reply.has_error():
                return reply
            session.end_at(to_params(reply.content.array_records[ARRAYS]))
        del reply.content[ARRAYS]
        measured: Mapping[str, Any] = reply.content.metric_records.get(METRICS, MetricRecord())
        update = session.update(float(measured.get("num-examples", 0)))
        for key, record in to_records(update).items():
            reply.content[key] = record
        return session.marked(reply)


def _arrays(asked: MethodRecord, received: dict[str, Any]) -> Params:
    """Returns arrays of all names and shapes, in order; those not received come later."""
    there = received.get("model", {})
    shapes = dict(zip(asked.names, asked.shapes, strict=True))
    return {
        n: there[n] if n in there else torch.zeros([*map(int, filter(None, s.split(",")))])
        for n, s in shapes.items()
    }


class _HiddenLoop(Session):
    """A session that finds its network in the optimizer of a hidden loop."""

    _bound = False

    def _mine(self, optimizer: Optimizer) -> Params:
        held = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        leaves = self.module.leaves
        names = [n for n in leaves if n in self.module.learned]
        if not self._bound and len(held) == len(names):
            pairs = dict(zip(names, held, strict=True))
            if all(p.shape == leaves[n].shape for n, p in pairs.items()) and all(
                torch.equal(p.detach().cpu(), leaves[n].detach().cpu()) for n, p in pairs.items()
            ):
                leaves |= pairs
                self._bound = True
        return super()._mine(optimizer)

    def end_at(self, state: Params) -> None:
        """Takes running statistics from the app's reply; all, where the loop was its own."""
        if not self._taken:
            if self.traits.plain:
                self.module.load({n: state[n] for n in self.module.leaves})
            return
        running = {n: state[n].float() for n in self.module.running}
        for slot, x in self._work.items():
            if slot in ("model", "own") and running and running.keys() <= x.keys():
                self._work[slot] = x | running
