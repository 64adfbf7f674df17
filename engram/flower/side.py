"""A client's side of a round: the received slots, its memory, its method, and its guards."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app import Context as FlowerContext
from torch import nn
from torch.utils._pytree import tree_map

from engram.core.checks import must
from engram.core.contract import difference
from engram.core.method import Context, Method, Slots, Update
from engram.core.personal_parameters import build
from engram.core.slots import flat, over_slots
from engram.core.streams import fresh
from engram.flower.memory import Memory
from engram.flower.messages import ENGRAM, START, MethodRecord, from_records, to_records
from engram.flower.module import NetworkModule
from engram.flower.replay import Replay
from engram.guards.chain import chain
from engram.guards.guard import Guard
from engram.guards.noise import secret_noise
from engram.guards.places import At
from engram.settings.errors import Refused
from engram.wire.flower import to_params
from engram.wire.wire import METRICS


class Site(NamedTuple):
    """A client's own terms.

    Attributes:
        memory: Folder for the client's memory; None for ``context.state``.
        methods: Methods that it takes part in; all if empty.
        guards: Guards that act before an update leaves: ``clip``, ``local_noise``, your own.
    """

    memory: str | Path | None = None
    methods: Collection[str] = ()
    guards: Sequence[Guard] = ()


USUAL: Final = Site()


class Side:
    """A client's side of a round, before and after its training.

    Args:
        msg: The message of a strategy in ``engram.strategies``.
        context: The node's context.
        net: The user's network.
        site: The client's own terms.

    Raises:
        Refused: They do not go together.
    """

    def __init__(self, msg: Message, context: FlowerContext, net: nn.Module, site: Site) -> None:
        self.msg, self.asked = msg, MethodRecord.read(msg.content)
        if site.methods and self.asked.method not in site.methods:
            expected = f"one of {', '.join(site.methods)} at this client"
            raise Refused(must("method", self.asked.method, expected))
        self.module = NetworkModule(net, {*self.asked.running})
        self.guard = chain(*site.guards)
        check_guards(self.guard)
        self.memory = Memory(context, self.asked.training, site.memory)
        self.settings, self.replay = self.asked.own, Replay()
        network, outputs = self.module.network(self.asked.personal), self.asked.outputs
        # Objectives that are taken come later; clients are the server's to count.
        self.context = Context(network, self.replay.objective, outputs, 1, torch.Generator)
        self.method: Method = build(self.settings, self.context)
        self.device = next(iter(self.module.leaves.values())).device
        self.received = self.here(from_records(msg.content))
        common, own = self.method.server.send(self.method.server.start, [0])
        for slot, x in (common | tree_map(lambda leaf: leaf[0], own)).items():
            if wrong := difference(x, self.received.setdefault(slot, {}), whole=True):
                got = f"{type(net).__name__}, whose {slot!r} has {wrong}"
                raise Refused(f"net must be the server's network, got {got}")

    def here(self, slots: Any) -> Any:
        """Returns slots on the network's device."""
        return tree_map(lambda x: x.to(self.device), slots)

    def recall(self, before: int) -> tuple[Slots, bool]:
        """Returns the kept slots of rounds before this one, and whether the client has trained.

        Raises:
            Refused: The memory is gone; the server sends what clients begin with next time.
        """
        start, stored = self.method.client.start, self.memory.load(before)
        if stored is not None:
            return self.here({s: x for s, x in start.items() if not flat({s: x})} | stored), True
        if start and START not in self.msg.content:
            words = "this client has lost its memory, and begins anew in its next round"
            raise Refused(f"{self.asked.method}: {words}: Site(memory=FOLDER) keeps it in files")
        begun = dict(start)
        for slot, x in start.items():
            if self.method.kinds[slot] == "model":  # the server's network has its values
                sent = to_params(self.msg.content[START])
                begun[slot] = {n: sent[f"{slot}/{n}"] for n in x}
        return self.here(begun), not start

    def guarded(self, sent: Slots, rows: float) -> Slots:
        """Returns an update as the client's guards let it leave."""
        sent, received = (over_slots(torch.Tensor.cpu, x) for x in (sent, self.received))
        if not self.guard.acts("leave") or not flat(sent):
            return sent
        normal = fresh(secret_noise, self.asked.round)
        place = (self.method, self.module.running, 1, received, lambda _: received, normal)
        update, _ = self.guard.leave(At(*place, like=sent), Update(sent, rows), {})
        return update.slots

    def message(self, num_examples: int, metrics: dict[str, float], sent: Slots) -> Message:
        """Returns the reply."""
        measured = MetricRecord({"num-examples": num_examples, **metrics})
        content = RecordDict({**to_records(sent), METRICS: measured})
        return self.marked(Message(content, reply_to=self.msg))

    def marked(self, reply: Message) -> Message:
        """Adds the method's name to a reply; a strategy leaves out replies that lack it."""
        if not reply.has_error():
            reply.content[ENGRAM] = ConfigRecord({"method": self.asked.method})
        return reply


def check_guards(guard: Guard) -> None:
    """Refuses guards that need more than an update: they act in Engram's own clients alone.

    Raises:
        Refused: A guard takes gradients of rows, encodes or masks updates, or keeps slots.
    """
    if guard.acts("rows", "send", "arrive") or guard.keeps or guard.broadcast:
        expected = "such as bound, hide, choose or merge whole updates"
        why = "others need Engram's own clients, engram.make_client_app"
        raise Refused(f"{must('guards', guard.name, expected)}: {why}")
