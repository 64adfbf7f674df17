"""The model that serves a client after a run: the one that its ``served`` scores belong to."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import torch
from torch import nn

from client.memory import OWN
from client.training.scoring import Scorer
from engram.models import Model
from engram.models.plain import Mixture, Recalling
from engram.optimizers import model_part
from engram.tasks import TASKS
from engram.tree import is_finite, part
from engram.types import Candidates, Params
from federation.data.federated import FederatedData
from federation.data.standards import standardized
from federation.errors import Refused
from federation.experiment import Experiment
from federation.methods.local import COMMON, KEPT, LocalMethod
from federation.tensors import difference

__all__ = ["Client", "check_served", "plain_module", "serving"]

_BLOCK = 1024  # rows that are represented at once


class Client(NamedTuple):
    """A client at the end of a run.

    Attributes:
        number: Its number.
        w: The network's arrays: those that the server sends, and the client's own.
        state: The model that its rule remembers; empty if there is none.
        remembers: Whether it has a memory of any round.
        unseen: Whether it is one of the clients that never train.
    """

    number: int
    w: Params
    state: Params
    remembers: bool
    unseen: bool

    @classmethod
    def of(cls, number: int, sent: Params, memory: Params, *, unseen: bool) -> Self:
        """Returns a client from the arrays that it is sent and its memory, which may be empty."""
        kept = model_part(memory)
        own = {n.removeprefix(OWN): leaf for n, leaf in kept.items() if n.startswith(OWN)}
        state = {n: leaf for n, leaf in kept.items() if not n.startswith(OWN)}
        return cls(number, sent | own, state, bool(kept), unseen)


def serving(
    experiment: Experiment, network: Model, data: Callable[[], FederatedData], client: Client
) -> Candidates:
    """Returns the model that serves a client, or several with their weights in a mixture.

    It is the model that the client keeps; or the common one with the client's own arrays; or this
    one after fine-tuning on the client's training rows, as for clients that never train, but for
    fine-tuning that diverges where the method keeps models. If a
    method also consults rows when it predicts, it is the network that represents these rows.

    Args:
        experiment: The settings.
        network: The network.
        data: Loads data with the client's rows; called only if they are needed.
        client: The client.
    """
    own, w = experiment.of(LocalMethod), client.w
    if client.state and own.serves == KEPT:
        return Candidates((part(client.state),))
    if network.kept is not None and client.remembers:
        return Candidates((part(network.kept(w)),))
    if own.recall() is not None or (own.serves == COMMON and not client.unseen):
        return Candidates((part(w),))
    found = None if network.candidates is None else network.candidates(w)
    if found is not None and found.weights is not None:
        return found
    scorer = Scorer(experiment, network, standardized(experiment, data()), vectorized=False)
    if found is None:
        tuned = scorer.personalized(part(w), client.number)
        return Candidates((part(w) if own.serves == KEPT and not is_finite(tuned) else tuned,))
    stacks = [{name: leaf[None] for name, leaf in model.items()} for model in found.models]
    chosen = scorer.least([client.number], stacks)
    return Candidates(({name: leaf[0] for name, leaf in chosen.items()},))


def check_served(experiment: Experiment, start: Params, served: Candidates, name: str) -> None:
    """Refuses models that are another network's, or no longer numbers after fine-tuning.

    Args:
        experiment: The settings.
        start: The network's initial arrays.
        served: As ``serving`` returns it.
        name: The client's name.
    """
    e = experiment
    for model in served.models:
        if (wrong := difference(model, part(start))) is not None:
            raise Refused(
                f"client {name} has learned another network than the one called {e.model} here: "
                f"{wrong}"
            )
        if not is_finite(model):
            raise Refused(
                f"client {name} has no model: after fine-tuning, by {e.adapt_steps} steps of "
                f"adapt-lr {e.adapt_lr:g}, it is not finite; lower adapt-lr"
            )


def plain_module(
    experiment: Experiment,
    network: Model,
    served: Candidates,
    data: Callable[[], FederatedData],
    client: int | None,
) -> nn.Module:
    """Returns the model that serves a client as one plain module, in evaluation mode.

    Args:
        experiment: The settings.
        network: The network.
        served: As ``serving`` returns it.
        data: Loads data with the client's rows, which some methods consult when they predict.
        client: The client's number; None for a model that belongs to no client.
    """
    own = experiment.of(LocalMethod)
    modules = modules_of(network, served.models)
    if served.weights is not None:
        targets = TASKS[experiment.task].targets
        return Mixture(modules, served.weights, targets).eval()
    (module,), recall = modules, own.recall()
    if recall is None or client is None:
        return module
    train = data().train
    rows = torch.from_numpy(train.rows[client])
    blank = Recalling(module, recall, torch.zeros(0, network.width), torch.zeros(0))
    taken = [train.take(some) for some in torch.split(rows, _BLOCK)]
    with torch.no_grad():
        memory = torch.cat([blank.represent(x)[1] for x, _ in taken])
    return Recalling(module, recall, memory, torch.cat([y for _, y in taken])).eval()


def modules_of(network: Model, models: Sequence[Params]) -> list[nn.Module]:
    """Returns models of a network as plain modules."""
    assert network.module is not None  # for mypy: every network that is built by name has it
    return [network.module({n: leaf.cpu() for n, leaf in model.items()}) for model in models]
