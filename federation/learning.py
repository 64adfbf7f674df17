"""The method of an experiment, as a server and estimates see it: without data."""

from functools import partial

from engram.cohort.problem import network_of
from engram.core.shapes import Shapes, shapes_of, without_data
from federation.data.federated import model_for
from federation.errors import Refused, one_line
from federation.experiment import Experiment
from federation.methods.network import NetworkMethod
from federation.roster import Kind
from federation.streams import Stream, torch_generator

__all__ = ["server_side"]


def server_side(experiment: Experiment, kind: Kind) -> tuple[Shapes, frozenset[str]]:
    """Builds the method on the experiment's network, and the slots of one client.

    Args:
        experiment: The settings.
        kind: What the clients' data are like.

    Returns:
        The method with its slots, and the names of the network's running statistics.

    Raises:
        Refused: Method, network and data do not go together.
    """
    e = experiment
    model = model_for(e, kind)
    generator = torch_generator(e.seed, Stream.MODEL)
    initial = model.init(generator)
    network = network_of(model, initial, partial(model.init, generator))
    try:
        method = without_data(
            e.of(NetworkMethod).settings,
            network,
            outputs=kind.outputs,
            clients=e.num_clients,
            generator=partial(torch_generator, e.seed, Stream.HYPERNETWORK),
        )
    except ValueError as error:
        raise Refused(one_line(str(error))) from error
    return shapes_of(method), network.running
