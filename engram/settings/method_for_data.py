"""The method of an experiment on its network, without data, and the memory that it takes.

On torch's meta device arrays have shapes and no values. The functions that make a method's slots
run there as they are, so that no method needs a formula of its own.
"""

import mmap
import os
from functools import partial
from itertools import pairwise
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Generator, Tag, Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from engram.core.checks import must
from engram.core.contract import Contract, cause_of
from engram.core.machine import check_room
from engram.core.method import Context, Method, Network, Objective
from engram.core.method_shapes import WITHOUT_DATA, Shapes, gradients_of, nbytes, shapes_of
from engram.core.personal_parameters import build
from engram.core.rounds import first_steps
from engram.core.slots import flat
from engram.core.streams import Stream, torch_generator
from engram.core.types import Params
from engram.data.federated import example, model_for
from engram.data.schema.columns import Kind
from engram.guards.facts import Fact
from engram.networks.base import Inputs, Model, network_of
from engram.settings.errors import Refused, one_line

if TYPE_CHECKING:
    from engram.settings.experiment import Experiment

_COPIES: Final = 2  # of what a client works on, at least: a gradient, and the next
_LARGE: Final = 2**24  # bytes of a tensor that are worth a file
_ALIGNED: Final = 64  # bytes, a multiple of which tensors in it begin at
_ROWS: Final = 2  # of a batch without values
_NOWHERE: Final = "meta"  # the device whose arrays have shapes, and no values


class _Elementwise(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Shapes of elementwise results, for which torch would import its compiler: two seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # what skips it would import it, too

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        like = op._schema.name.endswith("_like")
        if op._schema.is_mutable or not (like or Tag.pointwise in op.tags):
            return op(*args, **(kwargs or {}))
        shape = np.broadcast_shapes(*(x.shape for x in tree_leaves(args) if isinstance(x, Tensor)))
        here = partial(torch.empty, device="cpu")
        few = tree_map_only(Tensor, lambda x: here([0] * x.ndim, dtype=x.dtype), args)
        dtype = op(*few, **(kwargs or {})).dtype
        return torch.empty(shape, dtype=dtype, device=_NOWHERE)


def server_side(experiment: "Experiment", kind: Kind) -> tuple[Method, Shapes, frozenset[str]]:
    """Builds the method of an experiment for a server.

    Returns:
        The method, the slots of one client, and the names of the network's running statistics.

    Raises:
        Refused: As ``shapes_on``, or the server's slots do not fit into memory.
    """
    e = experiment
    model = model_for(e, kind)
    shapes = shapes_on(e, model, kind.outputs)
    check_server(e, shapes)
    shapes = shapes._replace(gradients=partial(_gradients, e, model, kind, shapes))
    generator = torch_generator(e.seed, Stream.MODEL)
    initial = set_aside(model.init(generator))  # it is rarely looked at again
    network = network_of(model, initial, partial(model.init, generator))
    try:
        method = _built(e, network, kind.outputs)
    except ValueError as error:
        raise Refused(one_line(str(error))) from error
    return method, shapes, network.running


def set_aside(arrays: Params) -> Params:
    """Returns large tensors of the CPU as parts of a file, and others as they are."""
    large = {n: x for n, x in arrays.items() if x.nbytes > _LARGE and x.device.type == "cpu"}
    if not large:
        return arrays
    found, places = dict(arrays), dict[str, int]()
    try:
        with TemporaryFile() as file:  # one for all, since a map keeps a file open
            for name, leaf in large.items():
                places[name] = file.seek(-file.tell() % _ALIGNED, os.SEEK_CUR)
                file.write(leaf.contiguous().numpy().data)
            file.flush()
            held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError:  # no room for temporary files
        return arrays
    for name, leaf in large.items():
        part = torch.frombuffer(held, dtype=leaf.dtype, count=leaf.numel(), offset=places[name])
        found[name] = part.reshape(leaf.shape)
    return found


def client_axes(experiment: "Experiment", kind: Kind) -> dict[str, list[int]]:
    """Returns the axes of the server's arrays that have an entry for each client, by path."""
    sizes = []
    for clients in (experiment.num_clients, experiment.num_clients + 1):
        e = experiment.model_copy(update={"num_clients": clients})
        start = shapes_on(e, model_for(e, kind), kind.outputs).method.server.start
        sizes.append({path: leaf.shape for path, leaf in flat(start).items()})
    one, more = sizes
    return {
        path: [axis for axis, size in enumerate(shape) if size != more[path][axis]]
        for path, shape in one.items()
        if shape != more[path]
    }


def check_fit(experiment: "Experiment", kind: Kind) -> None:
    """Refuses a network, or a client of the method, that does not fit such data or the memory."""
    model = model_for(experiment, kind)
    if experiment.own.trains_network:
        shapes_on(experiment, model, kind.outputs)


def shapes_on(experiment: "Experiment", model: Model, outputs: int) -> Shapes:
    """Returns the shapes of one client's slots, without taking memory for them.

    ``outputs`` is the number of classes, or of values.

    Raises:
        Refused: The method does not go with the network or the settings, or a client's slots do
            not fit into memory.
    """
    e = experiment
    if e.network.personal and e.personal.startswith("!") and not model.personal - model.running:
        raise Refused(must("personal", e.personal, f"less than all for {e.method}"))
    network = _without_values(model)
    try:
        with torch.device(_NOWHERE), _Elementwise():  # type: ignore[no-untyped-call]  # torch's
            made = _built(e, network, outputs)
            contract = Contract(e.method, made, network.initial)
            # Epochs have different numbers of steps for each client.
            steps = () if e.local_epochs else (e.local_steps,)
            shapes = shapes_of(contract, *steps)
    except ValueError as error:
        raise Refused(one_line(str(error))) from error
    except Exception as error:  # anybody's method
        why = one_line(cause_of(e.method, error))
        expected = "one whose functions run on this network's slots, without values"
        raise Refused(f"method {e.method} must be {expected}, got {why}") from error
    check_client(e, shapes)
    sent = [x for x in shapes.sent.values() if isinstance(x, dict)]
    averaged = any(network.running & x.keys() for x in sent)
    why = ""
    if e.is_private:
        why = "there is privacy: averaged ones would leave clients without noise"
    elif Fact.EACH not in e.facts:
        why = "aggregation is secure: clip bounds no other"
    if averaged and why:
        expected = f"local or fixed (or norm group) where {why}"
        raise Refused(must("statistics", e.statistics, expected))
    return shapes


def _without_values(model: Model) -> Network:
    initial = tree_map(lambda leaf: leaf.to(_NOWHERE), model.init(Generator()))
    return network_of(model, initial, lambda: initial)._replace(draws=lambda n: [initial] * n)


def _built(
    e: "Experiment", network: Network, outputs: int, objective: Objective = WITHOUT_DATA
) -> Method:
    generator = partial(torch_generator, e.seed, Stream.HYPERNETWORK)
    context = Context(network, objective, outputs, e.num_clients, generator)
    return build(e.network.settings, context)


def _gradients(e: "Experiment", model: Model, kind: Kind, shapes: Shapes, steps: int) -> int | None:
    y = torch.zeros(_ROWS, dtype=torch.int64 if e.task == "classification" else torch.float32)
    batch = tree_map(lambda leaf: leaf.to(_NOWHERE), (example(kind.inputs, _ROWS), y))
    made = partial(_built, e, _without_values(model), kind.outputs)
    try:
        with torch.device(_NOWHERE), _Elementwise():  # type: ignore[no-untyped-call]  # torch's
            each = gradients_of(made, shapes.work, batch)
    except Exception:  # of any method that looks at values, which meta tensors lack: not counted
        return None
    starts = [*first_steps(shapes.method.client.phases, steps), steps]
    return sum(n * (end - at) for n, (at, end) in zip(each, pairwise(starts), strict=True))


def forecast(experiment: "Experiment", kind: Kind, rows: Inputs) -> str:
    """Describes a client's round, as ``costs``, on such rows.

    Raises:
        Refused: The settings do not fit the data, or the memory.
    """
    model = model_for(experiment, kind, rows)
    return costs(experiment, shapes_on(experiment, model, kind.outputs), model.frozen)


def costs(experiment: "Experiment", shapes: Shapes, frozen: int) -> str:
    """Describes a client's traffic, memory and room in a round, uncompressed and without rows.

    ``frozen`` is the size of the parameters that nobody trains, in bytes.
    """
    e = experiment
    sizes = map(nbytes, (shapes.received, shapes.sent, shapes.kept))
    each = [f"{size / 2**10:,.1f} KiB" for size in (*sizes, _client_size(shapes), frozen)]
    words = "a client of {} receives {}, sends {} and keeps {}; its models take {} in training"
    beside = f", beside frozen parameters of {each.pop()}" if frozen else ""
    before = "" if e.compress == "none" else f", before compress={e.compress}"
    return f"a round{before}: {words.format(e.method, *each[:4])}{beside}"


def _client_size(shapes: Shapes) -> int:
    # A node builds the server's slots, as they start, too.
    held = max(nbytes(shapes.received), nbytes(shapes.method.server.start))
    return held + _COPIES * nbytes(shapes.work)


def check_client(experiment: "Experiment", shapes: Shapes) -> None:
    """Refuses slots of a client that do not fit into memory, or into ``memory-budget``."""
    e = experiment
    most = int(e.memory_budget * 2**30)
    check_room(f"a client of {e.method}", _client_size(shapes), _advice(e), most=most)


def check_server(experiment: "Experiment", shapes: Shapes) -> None:
    """Refuses slots of the server that do not fit into memory with a round's updates."""
    e, server = experiment, shapes.method.server
    # Updates of a round, until they are merged.
    held = 1 if server.merge.combines else e.clients_per_round
    size = nbytes(server.start) + held * nbytes(shapes.sent)
    size += e.num_clients * nbytes(shapes.own)
    check_room(f"the server of {e.method}", size, _advice(e))


def check_kept(experiment: "Experiment", shapes: Shapes, beside: int = 0) -> None:
    """Refuses clients' memories that do not fit into this machine's, where none is on disk.

    Each has so many bytes ``beside`` what the method keeps.
    """
    e = experiment
    clients = min(e.num_clients, e.num_rounds * e.clients_per_round)
    what = f"what {clients} clients of {e.method} keep between rounds"
    check_room(what, clients * (nbytes(shapes.kept) + beside), _advice(e))


def _advice(experiment: "Experiment") -> str:
    """Names settings to lower: those of the method that are above their defaults, if any."""
    e, own = experiment, experiment.own
    numbers = [(n, f) for n, f in type(own).model_fields.items() if f.annotation is int]
    raised = [field.alias for name, field in numbers if getattr(own, name) > field.default]
    if raised:
        return f"lower {' or '.join(f'{e.method}.{key}' for key in raised)}"
    return "take a smaller network, or fewer clients"
