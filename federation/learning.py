"""The method of an experiment on its network, without data."""

from functools import partial
from typing import Final

import torch
from torch import Generator
from torch.utils._pytree import tree_map

from engram.checks import must
from engram.cohort.problem import network_of
from engram.core.contract import Contract
from engram.core.method import Method, Network
from engram.core.shapes import Shapes, shapes_of, without_data
from engram.models import Model
from federation.data.federated import model_for
from federation.demand import check_client, check_server
from federation.errors import Refused, one_line
from federation.experiment import Experiment
from federation.methods.network import NetworkMethod
from federation.roster import Kind
from federation.streams import Stream, torch_generator

__all__ = ["check_fit", "server_side", "shapes_on"]

_NOWHERE: Final = "meta"  # the device whose arrays have shapes, and no values


def server_side(experiment: Experiment, kind: Kind) -> tuple[Method, Shapes, frozenset[str]]:
    """Builds the method of an experiment for a server.

    Args:
        experiment: The settings.
        kind: Shapes and types of the clients' data.

    Returns:
        The method, the slots of one client, and the names of the network's running statistics.

    Raises:
        Refused: As ``shapes_on``, or the server's slots do not fit into memory.
    """
    e = experiment
    model = model_for(e, kind)
    shapes = shapes_on(e, model, kind.outputs)
    check_server(e, shapes)
    generator = torch_generator(e.seed, Stream.MODEL)
    network = network_of(model, model.init(generator), partial(model.init, generator))
    try:
        method = _built(e, network, kind.outputs)
    except ValueError as error:
        raise Refused(one_line(str(error))) from error
    return method, shapes, network.running


def check_fit(experiment: Experiment, kind: Kind) -> None:
    """Checks that the network, and a client of the method, fit such data and into memory.

    Raises:
        Refused: One of them does not.
    """
    model = model_for(experiment, kind)
    if isinstance(experiment.own, NetworkMethod):
        shapes_on(experiment, model, kind.outputs)


def shapes_on(experiment: Experiment, model: Model, outputs: int) -> Shapes:
    """Returns the shapes of one client's slots, without taking memory for them.

    Args:
        experiment: The settings.
        model: The network.
        outputs: Number of classes, or of values.

    Raises:
        Refused: The method does not go with the network or the settings, or a client's slots do
            not fit into memory.
    """
    e = experiment
    if e.of(NetworkMethod).personal and e.share and not model.personal - model.running:
        raise Refused(must("share", e.share, f"less than all for {e.method}"))
    initial = tree_map(lambda leaf: leaf.to(_NOWHERE), model.init(Generator()))
    network = network_of(model, initial, lambda: initial)._replace(draws=lambda n: [initial] * n)
    try:
        with torch.device(_NOWHERE):
            made = _built(e, network, outputs)
            contract = Contract(e.method, made, network.initial)
            # Epochs have different numbers of steps for each client.
            steps = {} if e.local_epochs else {"steps": e.local_steps}
            shapes = shapes_of(contract, **steps)
    except ValueError as error:
        raise Refused(one_line(str(error))) from error
    except Exception as error:  # anybody's method
        why = one_line(f"{type(error).__name__}: {error}")
        expected = "one whose functions run on this network's slots, without values"
        raise Refused(f"method {e.method} must be {expected}, got {why}") from error
    check_client(e, shapes)
    sent = [x for x in shapes.sent.values() if isinstance(x, dict)]
    if e.privacy != "none" and any(network.running & x.keys() for x in sent):
        expected = (
            "local or fixed (or norm group) where there is privacy: averaged ones would leave "
            "clients without noise"
        )
        raise Refused(must("statistics", e.statistics, expected))
    return shapes


def _built(e: Experiment, network: Network, outputs: int) -> Method:
    return without_data(
        e.of(NetworkMethod).settings,
        network,
        outputs=outputs,
        clients=e.num_clients,
        generator=partial(torch_generator, e.seed, Stream.HYPERNETWORK),
    )
