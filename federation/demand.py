"""Memory that a method's own arrays take, known before it is taken.

On torch's meta device arrays have shapes and no values. The functions that make a method's arrays
run there as they are, so that no method needs a formula of its own.
"""

from collections.abc import Set

import torch

from engram.aggregates import Aggregate
from engram.models import begun
from engram.types import LocalRule, Params
from federation.experiment import Experiment
from federation.machine import check_room
from federation.settings.fields import key_of

__all__ = ["check_client", "check_kept", "check_server"]

_COPIES = 3  # of a client's models in training, at least: as received, a gradient, and the next


def check_client(experiment: Experiment, network: Params, rule: LocalRule) -> None:
    """Checks that a client's models fit into memory, and into ``memory-budget`` if it is set.

    Args:
        experiment: The settings.
        network: The network's parameters.
        rule: The method's rule, whose arrays are beside them.

    Raises:
        Refused: They do not.
    """
    e, whole = experiment, begun(_shapes(network), rule.companions)
    check_room(
        f"a client of {e.method}",
        _COPIES * _size(whole),
        _advice(e),
        most=int(e.memory_budget * 2**30),
    )


def check_server(
    experiment: Experiment, aggregate: Aggregate, model: Params, made: Set[str]
) -> None:
    """Checks that the server's arrays fit into memory: the model, its state, and what it holds.

    Args:
        experiment: The settings.
        aggregate: The server's part.
        model: What clients and server exchange.
        made: Names of those of its arrays that the server makes for each client.

    Raises:
        Refused: They do not.
    """
    e, shapes = experiment, _shapes(model)
    try:
        with torch.device("meta"):
            state = aggregate.init(shapes)
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        state = {}  # one that reads values, as a plug-in's may, is not known before it is made
    held = 1 if aggregate.additive else e.clients_per_round  # models of a round, until it is merged
    each = sum(model[name].nbytes for name in made)
    size = (1 + held) * _size(model) + _size(state) + e.num_clients * each
    check_room(f"the server of {e.method}", size, _advice(e))


def check_kept(experiment: Experiment, kept: Params) -> None:
    """Checks that what clients keep between rounds fits into memory, where it is kept there.

    Args:
        experiment: The settings.
        kept: What one client keeps; values do not matter.

    Raises:
        Refused: It does not.
    """
    e = experiment
    clients = min(e.num_clients, e.num_rounds * e.clients_per_round)
    what = f"what {clients} clients of {e.method} keep between rounds"
    check_room(what, clients * _size(kept), _advice(e))


def _shapes(params: Params) -> Params:
    return {name: leaf.to("meta") for name, leaf in params.items()}


def _size(params: Params) -> int:
    return sum(leaf.nbytes for leaf in params.values())


def _advice(experiment: Experiment) -> str:
    """Returns the settings to lower: the method's own that are larger than by default, if any."""
    e, own = experiment, experiment.own
    numbers = [(n, f.default) for n, f in type(own).model_fields.items() if f.annotation is int]
    raised = [name for name, default in numbers if getattr(own, name) > default]
    if raised:
        return f"lower {' or '.join(f'{e.method}.{key_of(name)}' for name in raised)}"
    return "take a smaller network, or fewer clients"
