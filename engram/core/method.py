"""The protocol of a federated method: pure functions over named slots.

A *slot* is a parameter dictionary, or one tensor, with a name: ``model``, ``control``. What a
method receives, works on, keeps and sends is a dictionary of slots, so nothing is told apart by
prefixes of names, and whoever clips, noises, encrypts, stores, screens or counts what leaves a
client walks the slots of the update.

    server --send--> received --begin--> work --phases--> work --end--> sent --merge--> server
                       kept ----^                           `----> kept

Shapes: no function of a client has a client axis. ``vmap`` adds one, so none may branch on a
tensor's value, draw random numbers, or keep state between calls. Which slots there are may depend
on which slots it is given.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Generator, Tensor
from torch.utils._pytree import register_pytree_node

from engram.core.types import Batch, Params, Scale

__all__ = [
    "Claim",
    "Client",
    "Context",
    "FromEach",
    "FromMean",
    "Kind",
    "Method",
    "Neighbors",
    "Network",
    "Objective",
    "Phase",
    "Served",
    "Server",
    "Slots",
    "Update",
    "Weighting",
]

Slots = dict[str, Any]
"""Slots by name; each is a ``Params`` or a ``Tensor``."""

Kind = Literal["model", "difference", "statistic"]
"""Kind of a slot: network parameters; differences of such, or gradients; anything else.

What leaves a client is bounded and compressed by its difference to what it would be if the client
had done nothing: the received slot of the same name for a model, zero for the others.
"""

Claim = Literal["shares", "amount", "sums"]
"""Range of an array of statistics that a client sends, and that serves as a weight or denominator.

``shares``: numbers that are at least 0 and add up to at most 1. ``amount``: a number that is at
least 0; a larger one than so many times the round's median counts as that. ``sums``: sums over the
rows of each class, divided by the number of all rows, beside an array ``shares`` of the classes in
the same slot: a class without rows has none, and a class's mean is bounded by those of others.
"""


class Network(NamedTuple):
    """A network as pure functions.

    Attributes:
        initial: Its parameters before training, the same for all clients, with running statistics.
        represent: ``(params, batch, shift) -> (outputs, z)``, in training; z (k, width) is the
            representation, the input of the last layer, which ``shift`` moves first: see
            ``Served.shift``. Raises ``ValueError`` for a network without a representation.
        width: Numbers in a representation.
        layers: Names of the parameters of each layer, with its running statistics, in order.
        running: Names of running statistics: they are moved by the engine alone.
        personal: Names of the parameters that never leave a client.
        draws: ``count -> starts``: that many initial parameters, the first of them ``initial``.
            Raises ``ValueError`` if they would be alike.
    """

    initial: Params
    represent: Callable[..., tuple[Tensor, Tensor]]
    width: int
    layers: tuple[frozenset[str], ...]
    running: frozenset[str]
    personal: frozenset[str]
    draws: Callable[[int], Sequence[Params]]

    def zeros(self, *shape: int) -> Tensor:
        """Returns zeros on the device of the network's parameters."""
        return next(iter(self.initial.values())).new_zeros(shape)

    @property
    def shared(self) -> frozenset[str]:
        """Names of the parameters that clients send."""
        return frozenset(self.initial) - self.personal

    @property
    def learned(self) -> frozenset[str]:
        """Names of all parameters without running statistics."""
        return frozenset(self.initial) - self.running

    @property
    def head(self) -> frozenset[str]:
        """Names of the last layer that has parameters, with its running statistics."""
        return [layer for layer in self.layers if layer - self.running][-1]

    def require_body(self) -> None:
        """Raises ``ValueError`` if the network has no learned parameters below its head."""
        if not self.learned - self.head:
            below = "parameters below its last layer, besides running statistics"
            raise ValueError(f"model must be a network that has {below}, got one without")

    def require_representation(self) -> None:
        """Raises ``ValueError`` if the network has no representation."""
        if not self.width:
            last = "whose last layer takes one feature vector per row"
            raise ValueError(f"this method needs a network {last}")


class Objective(NamedTuple):
    """The loss of a batch and its derivatives, by the way in which the engine takes them.

    A batch may be ``Weighted``: its loss is then the weighted sum of the losses of its rows.

    Attributes:
        loss: ``(params, batch) -> ()``.
        gradient: ``(params, batch, names=None) -> params``: by the parameters of these names; None:
            by all, with zeros for running statistics.
        hessian_product: ``(params, batch, v) -> params``: of the Hessian and v.
        criterion: ``(outputs, batch) -> ()``: the loss of outputs, for a loss with further terms.
            Raises ``ValueError`` where the loss has no outputs.
        differentiate: ``(function, names=None) -> derivative``, for ``function(params, *rest) ->
            (value, observed)`` and ``derivative(params, *rest) -> (gradient, observed)``.
    """

    loss: Callable[[Params, Batch], Tensor]
    gradient: Callable[..., Params]
    hessian_product: Callable[[Params, Batch, Params], Params]
    criterion: Callable[[Tensor, Batch], Tensor]
    differentiate: Callable[..., Callable[..., tuple[Params, Any]]]


class Context(NamedTuple):
    """The problem that a method is built for.

    Attributes:
        network: What is trained.
        objective: What is minimized.
        outputs: Number of classes, or of values.
        clients: Number of clients of the federation, >= 1. When more come, the method is built
            again, and goes on with the slots that there are: entries of arrays that have one for
            each client stay, and new clients have those of ``start``.
        generator: Returns a generator, always in the same state, for what a server draws.
    """

    network: Network
    objective: Objective
    outputs: int
    clients: int
    generator: Callable[[], Generator]


class Update(NamedTuple):
    """Slots that a client sends after a round, or the mean of those that several send.

    Attributes:
        slots: The slots.
        rows: Training rows that it stands for.
        clients: Clients that it stands for.
        client: The client's number; None for a mean.
        weight: Its weight in means that a ``FromEach`` takes: rows or clients.
    """

    slots: Slots
    rows: float
    clients: float = 1
    client: int | None = None
    weight: float = 1


Weighting = Literal["rows", "clients"]
"""Weight of an update in a mean: its client's training rows, or the same for every client."""


class FromMean(NamedTuple):
    """A merge that sees the mean of the updates alone.

    So the mean may be taken in parts (by nodes), robustly, with noise, or by secure aggregation.

    Attributes:
        merge: ``(server, mean) -> server``.
        by: The paper's weight of an update in the mean; see ``engram.core.rounds.weighed``.
        steps: Whether the merge is a step of the server's own, which no other may replace.
    """

    merge: Callable[[Slots, Update], Slots]
    by: Weighting = "clients"
    steps: bool = False

    @property
    def combines(self) -> bool:
        """Whether updates become one before the server sees any."""
        return True


class FromEach(NamedTuple):
    """A merge that sees every update.

    Attributes:
        merge: ``(server, updates) -> server``; its means are by ``Update.weight``.
        by: The paper's weight of an update.
    """

    merge: Callable[[Slots, Sequence[Update]], Slots]
    by: Weighting = "clients"

    @property
    def combines(self) -> bool:
        """As of ``FromMean``."""
        return False

    @property
    def steps(self) -> bool:
        """As of ``FromMean``."""
        return False


class Server(NamedTuple):
    """The server's part.

    Attributes:
        start: Its slots before the first round. ``model``, where it has all of the network's
            parameters, is the common model.
        send: ``(server, clients) -> (common, own)``: slots that all clients receive alike, and
            slots with a leading client axis, of which each client receives its row.
        merge: The server's slots after the round.
        means: Names of slots that are means over all clients of what each sent last, or of zeros:
            they shrink as clients come.
    """

    start: Slots
    send: Callable[[Slots, Sequence[int]], tuple[Slots, Slots]]
    merge: FromMean | FromEach
    means: Set[str] = frozenset()


class Phase(NamedTuple):
    """Consecutive local steps of a round.

    Attributes:
        direction: ``(work, batches) -> (directions, work)``. The parameters in ``directions`` (some
            slots, some of their names) move by ``-eta`` times it; an optimizer, a schedule and a
            gradient's clip act there, and the slot's running statistics follow. What the method
            itself moves, it returns in ``work``.
        eta: Step size.
        batches: Independent batches that one step takes.
        fraction: Fraction of a round's steps, rounded up, that belong to this phase; the last phase
            has the rest, and at least one step.
        affine: Whether a step commutes with affine changes of coordinates: it differentiates at
            models, mixes models with weights that add up to 1, and moves them by gradients and
            differences, all of them made of slots: zeros are ``zeros`` of a slot. An engine may
            then keep them as coefficients of a few directions.
        one_gradient_per_batch: Whether a step takes one gradient of each batch and no other
            derivative.
    """

    direction: Callable[[Slots, tuple[Batch, ...]], tuple[Slots, Slots]]
    eta: Scale
    batches: int = 1
    fraction: float = 1.0
    affine: bool = False
    one_gradient_per_batch: bool = False


class Client(NamedTuple):
    """A client's part of a round.

    Attributes:
        begin: ``(received, kept, batch) -> work``; ``batch`` is None unless ``initial_rows``.
        phases: The local steps.
        end: ``(received, work) -> (sent, kept)``: what leaves the client, and what it keeps.
        sends: Names of the slots that leave it.
        start: What a client keeps before its first round.
        initial_rows: Rows of the batch that ``begin`` reads; 0 for none.
    """

    begin: Callable[[Slots, Slots, Batch | None], Slots]
    phases: tuple[Phase, ...]
    end: Callable[[Slots, Slots], tuple[Slots, Slots]]
    sends: Set[str]
    start: Slots = {}  # noqa: RUF012 - a NamedTuple's default, which nobody changes
    initial_rows: int = 0


class Neighbors(NamedTuple):
    """Votes of the client's own training rows that are nearest in representation.

    Attributes:
        weight: Weight of the votes in a mixture with the network's probabilities; in [0, 1].
        k: Rows that vote; >= 1.
        scale: Distance at which a vote weighs 1/e of one at no distance; > 0.
    """

    weight: float
    k: int
    scale: float


@dataclass(frozen=True)
class Served:
    """The source of a client's predictions.

    Attributes:
        models: One network, or several.
        weights: Mixture weights of several networks' probabilities, shape (len(models),), which
            add up to 1; None: the network with the least loss on the client's training rows.
        shift: Moves representations z on their way to the last layer. It is added to them, if its
            shape is (width,); of shape (2, width) it makes ``relu(shift[0] * z + shift[1])`` of
            them. None moves nothing.
        tuned: Whether it is fine-tuned on the client's training rows first.
        neighbors: Votes that are mixed into its predictions; None for none.
    """

    models: tuple[Params, ...]
    weights: Tensor | None = None
    shift: Tensor | None = None
    tuned: bool = False
    neighbors: Neighbors | None = None


def _flatten(served: Served) -> tuple[list[Any], tuple[Any, ...]]:
    arrays = {"models": served.models, "weights": served.weights, "shift": served.shift}
    there = {name: array for name, array in arrays.items() if array is not None}
    return list(there.values()), (*there, served.tuned, served.neighbors)


def _unflatten(arrays: Any, rest: tuple[Any, ...]) -> Served:
    *names, tuned, neighbors = rest
    return Served(**dict(zip(names, arrays, strict=True)), tuned=tuned, neighbors=neighbors)


register_pytree_node(Served, _flatten, _unflatten)  # so that vmap makes many clients' at once


class Method(NamedTuple):
    """A federated method.

    Attributes:
        server: The server's part.
        client: A client's part.
        serve: ``(received, kept, trained) -> Served``; a client that has not ``trained`` keeps its
            start. Scoring, exports, predictions and a node's own memory all call it, and nothing
            else decides which model serves a client.
        kinds: Kinds of all slots, by their names.
        claims: Ranges of the arrays that leave a client and are weights or denominators, by path:
            ``slot``, or ``slot/name``.
    """

    server: Server
    client: Client
    serve: Callable[[Slots, Slots, bool], Served]
    kinds: Mapping[str, Kind]
    claims: Mapping[str, Claim] = {}
