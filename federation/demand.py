"""Memory that a method's slots will take, computed before it is taken.

On torch's meta device arrays have shapes and no values. The functions that make a method's slots
run there as they are, so that no method needs a formula of its own.
"""

from engram.core.method import FromMean
from engram.core.shapes import Shapes
from engram.core.slots import flat
from engram.types import Params
from federation.experiment import Experiment
from federation.machine import check_room
from federation.settings.fields import key_of

__all__ = ["check_client", "check_kept", "check_server"]

_COPIES = 2  # of what a client works on, at least: a gradient, and the next


def check_client(experiment: Experiment, shapes: Shapes) -> None:
    """Checks that a client's slots fit into memory, and into ``memory-budget`` if it is set.

    Raises:
        Refused: The slots do not fit.
    """
    e = experiment
    # A node builds the server's slots, as they start, too.
    held = max(_size(flat(shapes.received)), _size(flat(shapes.method.server.start)))
    size = held + _COPIES * _size(flat(shapes.work))
    most = int(e.memory_budget * 2**30)
    check_room(f"a client of {e.method}", size, _advice(e), most=most)


def check_server(experiment: Experiment, shapes: Shapes) -> None:
    """Checks that the server's slots, and the updates of a round, fit into memory.

    Raises:
        Refused: The slots do not fit.
    """
    e, server = experiment, shapes.method.server
    # Updates of a round, until they are merged.
    held = 1 if isinstance(server.merge, FromMean) else e.clients_per_round
    size = _size(flat(server.start)) + held * _size(flat(shapes.sent))
    size += e.num_clients * _size(flat(shapes.own))
    check_room(f"the server of {e.method}", size, _advice(e))


def check_kept(experiment: Experiment, shapes: Shapes) -> None:
    """Checks that clients' memories fit into this machine's, where they are not on disk.

    Raises:
        Refused: They do not fit.
    """
    e = experiment
    clients = min(e.num_clients, e.num_rounds * e.clients_per_round)
    what = f"what {clients} clients of {e.method} keep between rounds"
    check_room(what, clients * _size(flat(shapes.kept)), _advice(e))


def _size(params: Params) -> int:
    return sum(leaf.nbytes for leaf in params.values())


def _advice(experiment: Experiment) -> str:
    """Names settings to lower: those of the method that are above their defaults, if any."""
    e, own = experiment, experiment.own
    numbers = [(n, f.default) for n, f in type(own).model_fields.items() if f.annotation is int]
    raised = [name for name, default in numbers if getattr(own, name) > default]
    if raised:
        return f"lower {' or '.join(f'{e.method}.{key_of(name)}' for name in raised)}"
    return "take a smaller network, or fewer clients"
