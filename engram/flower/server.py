"""The server's side of a method in a Flower app: its functions, its network, and its guards."""

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import count
from typing import Any, Literal

import torch
from flwr.app import ConfigRecord
from torch import nn
from torch.utils._pytree import tree_map

from engram.core.contract import Contract
from engram.core.method import Context, Method, Slots
from engram.core.method_shapes import WITHOUT_DATA, shapes_of
from engram.core.personal_parameters import build
from engram.core.rounds import received_by, weighed
from engram.core.settings import about
from engram.core.streams import Stream, fresh, generator, torch_generator
from engram.core.tree import is_finite
from engram.core.types import Params
from engram.flower.messages import MethodRecord, key_of, params_of
from engram.flower.module import NetworkModule
from engram.flower.side import check_guards
from engram.guards.chain import chain
from engram.guards.facts import Fact, Part, conflicts
from engram.guards.guard import Guard
from engram.guards.noise import secret_noise
from engram.guards.places import At
from engram.guards.robust.claims import claimed_ranges
from engram.guards.robust.lengths import FAR
from engram.settings.errors import Refused
from engram.settings.families import METHODS
from engram.wire.messages import Content
from engram.wire.wire import read_array

Net = nn.Module | Callable[[], nn.Module]
Weights = Literal["rows", "clients", "paper"]


class ServerSide:
    """The server's side of a method, for the clients so far; arguments as of its strategy.

    Attributes:
        method: The method, as the guards have changed it.
        guard: The guards.
    """

    method: Method
    guard: Guard

    def __init__(
        self, net: Net, settings: Any, personal: str, weighting: Weights, outputs: int,
        guards: Sequence[Guard], seed: int,
    ) -> None:  # fmt: skip
        self.net = copy.deepcopy(net) if isinstance(net, nn.Module) else net()
        self._make = None if isinstance(net, nn.Module) else net
        self._settings, self._name, self._seed = settings, about(settings).name, seed
        self._personal, self._weighting = personal, weighting
        self._outputs = outputs or NetworkModule(self.net).outputs
        self._guards, self._given = guards, chain(*guards)
        # What a resumed strategy must have alike.
        self.words = {"method": self._name, "settings": asdict(settings), "personal": personal}

    def check(self, asked: int) -> None:
        """Refuses guards that do not go with the method, each other, or so few clients."""
        check_guards(self._given)
        parts, awaiting = list[Part](), list[Part]()
        for g in self._guards:
            bounds = {Fact.BOUNDED} if g.acts("bound") else set[Fact]()
            needs, gives = g.needs - bounds, g.gives | (bounds - g.ends)
            ends = g.ends | ({Fact.TRAINED} if g.acts("leave") else set())
            parts.append(Part("guards", g.name, needs, ends, gives, g.asks, g.per))
            awaiting.append(Part("guards", g.name, g.awaits))
        missing = dict.fromkeys(Fact, (f"it is not so for {self._name} and what stands before",))
        facts = METHODS[self._name]().facts
        if faults := [*conflicts(facts, [*parts, *awaiting], missing, asked, ())]:
            raise Refused(*faults)

    def build(self, clients: int) -> Slots:
        """Builds the method for as many clients; returns the server's slots at the start."""
        draw = partial(torch_generator, self._seed, Stream.HYPERNETWORK)
        try:
            start = partial(self._drawn, count(self._seed))
            network = NetworkModule(self.net).network(self._personal, start)
            context = Context(network, WITHOUT_DATA, self._outputs, clients, draw)
            method = build(self._settings, context)
            shapes = shapes_of(Contract(self._name, method, network.initial))
        except Refused:
            raise
        except ValueError as error:
            raise Refused(f"{self._name}: {error}") from error
        by: Weights = "clients" if self._given.alike else self._weighting
        method = method if by == "paper" else weighed(method, by)
        claims = [claimed_ranges(method.claims)] if method.claims else []
        open_ = method.server.merge.combines and self._given.acts("gather")
        self.guard = chain(*claims, self._given, *([] if open_ else [FAR]))
        self.method, self._sent = self.guard.method(method), shapes.sent
        self._running = network.running
        return self.method.server.start

    def _drawn(self, seeds: Iterator[int]) -> Params:
        """Draws another start of the network, for methods with several."""
        if self._make is None:
            words = "starts from several networks: give the class, Net, in place of Net()"
            raise Refused(f"{self._name} {words}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(next(seeds))
            return NetworkModule(self._make()).read()

    def serves_received(self) -> bool:
        """Returns whether a client is served by the very model that it receives."""
        received = received_by(self.method, self.method.server.start, 0)
        kept = tree_map(torch.clone, self.method.client.start)
        served = self.method.serve(received, kept, True)
        changed = served.tuned or served.shift is not None or served.neighbors is not None
        return served.models[0] is received.get("model") and not changed

    def at(self, slots: Slots, asked: int, number: int) -> At:
        """Returns the place where guards act in a round."""
        return At(
            self.method, self._running, max(1, asked), slots,
            lambda update: received_by(self.method, slots, update.client),
            fresh(secret_noise, number), lambda stream: generator(self._seed, stream, number),
        )  # fmt: skip

    def record(self, number: int, training: str) -> ConfigRecord:
        """Returns the record of the method in a round's messages."""
        module = NetworkModule(self.net)
        shapes = [",".join(map(str, x.shape)) for x in module.leaves.values()]
        settings, running = json.dumps(asdict(self._settings)), sorted(module.running)
        own = self._name, settings, self._outputs, self._personal, number, training
        return ConfigRecord(MethodRecord(*own, [*module.leaves], shapes, running)._asdict())

    def read(self, content: Content, arrays_key: str) -> Slots:
        """Reads an update, which is finite, of the method's names, shapes and types.

        Raises:
            KeyError: Something is missing.
            TypeError, ValueError: It is something else.
        """
        slots: Slots = {}
        for slot, x in self._sent.items():
            like = params_of(x)
            record = content[key_of(slot, arrays_key)] if like else {}
            if record.keys() != like.keys():
                odd = sorted(record.keys() ^ like.keys())[:3]
                raise ValueError(f"{slot!r} has arrays that are missing or too many: {odd}")
            read = {n: read_array(record[n], tuple(y.shape), y.dtype) for n, y in like.items()}
            slots[slot] = read if isinstance(x, dict) else next(iter(read.values()))
        if not is_finite(slots):
            raise ValueError("it is not finite")
        return slots
