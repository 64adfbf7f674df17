"""Personal parameters: any method, with parameters of chosen names kept by the clients."""

from dataclasses import replace
from typing import Any

from engram.core.method import Context, FromMean, Method, Network, Served, Slots, Update
from engram.core.settings import Part, about
from engram.core.slots import pick
from engram.core.types import Batch, Params


def build(settings: Any, context: Context) -> Method:
    """Builds a method with personal parameters, which its clients keep.

    If the network has none, they are the method's default part, ``About.personal``, such as the
    head. Running statistics that clients send are averaged, whatever the method's merge.

    Raises:
        ValueError: If the method and the network do not go together.
    """
    network, part = context.network, about(settings).personal
    if part and not network.personal - network.running:
        personal = network.personal | part_of(network, part)
        context = context._replace(network=network._replace(personal=personal))
    made = settings.build(context)
    slots = {*made.server.start, *made.client.start, *made.client.sends}
    if lacking := sorted(slots - made.kinds.keys()):
        expected = f"a kind of each slot, got none of {', '.join(lacking)}"
        raise ValueError(f"method {about(settings).name}: kinds must have {expected}")
    method = _keeping(made, context.network)
    return _averaging(method, context.network.running)


def part_of(network: Network, part: Part) -> frozenset[str]:
    """Returns the names of a part of a network.

    Args:
        network: The network.
        part: ``head``, the last layer that has parameters; ``body``, all others; ``norm``, the
            layers that have running statistics; ``all`` of it; "" for nothing.

    Raises:
        ValueError: If the network lacks the part.
    """
    if part in ("head", "body"):
        network.require_body()
    everything = frozenset(network.initial)
    normed = [layer for layer in network.layers if layer & network.running]
    found = {
        "": frozenset[str](),
        "head": network.head,
        "body": everything - network.head,
        "norm": frozenset[str]().union(*normed),
        "all": everything,
    }[part]
    if part and not found:
        norm = "batch norm with running statistics (not with norm=group or statistics=fixed)"
        lacks = norm if part == "norm" else f"a {part}"
        raise ValueError(f"model must be a network that has {lacks}, got one without")
    return found


def _keeping(method: Method, network: Network) -> Method:
    """Returns the method with personal parameters that its clients keep.

    Of each model that a client sends, it keeps its own values of these parameters. If it sends
    changes of a model in place of it, there is one such model, ``work["model"]``. A client that has
    not trained is fine-tuned: its parameters are the initial ones.
    """
    names, client, kinds = network.personal, method.client, method.kinds
    models = sorted(slot for slot in client.sends if kinds[slot] == "model")
    changes = sorted(slot for slot in client.sends if kinds[slot] == "difference")
    received_models = [s for s, x in method.server.start.items() if kinds[s] == "model" and x]
    if not names or not (models or changes):
        return method

    def mark(slot: str) -> str:
        return f"personal {slot}" if models else "personal"

    def apart(slots: Slots) -> tuple[Slots, Slots]:
        mine = {s: mark(s) for s in models or received_models}
        rest = {s: x for s, x in slots.items() if s not in mine.values()}
        return rest, {s: slots[m] for s, m in mine.items()}

    def whole(received: Slots, mine: Slots) -> Slots:
        return received | {s: received[s] | x for s, x in mine.items() if s in received}

    def begin(received: Slots, kept: Slots, batch: Batch | None) -> Slots:
        kept, mine = apart(kept)
        work = client.begin(whole(received, mine), kept, batch)
        return work | {mark(s): x for s, x in mine.items()}

    def end(received: Slots, work: Slots) -> tuple[Slots, Slots]:
        work, mine = apart(work)
        sent, kept = client.end(whole(received, mine), work)
        shared = {s: _without(sent[s], names) for s in (*models, *changes)}
        own = {mark(s): pick(sent[s], names) for s in models} or {
            "personal": pick(work["model"], names)
        }
        return sent | shared, kept | own

    def serve(received: Slots, kept: Slots, trained: bool) -> Served:
        kept, mine = apart(kept)
        served = method.serve(whole(received, mine), kept, trained)
        return served if trained else replace(served, tuned=True)

    server = method.server
    start = {s: _without(x, names) for s, x in server.start.items() if s in received_models}
    first = {s: server.start.get(s, network.initial) for s in models or received_models[:1]}
    begun = {mark(s): pick(x, names) for s, x in first.items()}
    return Method(
        server._replace(start=server.start | start),
        client._replace(begin=begin, end=end, start=client.start | begun),
        serve,
        {**kinds, **dict.fromkeys(begun, "model")},
        method.claims,
    )


def _without(x: Params, names: frozenset[str]) -> Params:
    return {name: leaf for name, leaf in x.items() if name not in names}


def _averaging(method: Method, running: frozenset[str]) -> Method:
    """Returns the method with running statistics averaged, whatever its merge.

    They are no parameters: a step of the server's own might make a variance negative.
    """
    merge = method.server.merge
    if not running or not isinstance(merge, FromMean):
        return method

    def averaged(server: Slots, mean: Update) -> Slots:
        found = merge.merge(server, mean)
        for slot in mean.slots.keys() & found.keys():
            if method.kinds[slot] == "model":
                found = found | {slot: found[slot] | pick(mean.slots[slot], running)}
        return found

    return method._replace(server=method.server._replace(merge=merge._replace(merge=averaged)))
