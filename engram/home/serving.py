"""The model that serves a client, as ``Method.serve`` says, as one plain module."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch import nn

from engram.client.memory import MemoryStore
from engram.cohort.trainer.client_memory import Recollection
from engram.cohort.trainer.trainer import Trainer
from engram.core.method import Method, Served, Slots
from engram.core.streams import Stream, torch_generator, unseen
from engram.core.tree import is_finite
from engram.data.federated import FederatedData
from engram.data.schema.columns import Schema
from engram.home.exported import Form
from engram.networks.base import Model
from engram.networks.export_modules import Mixture, Recalling, Shifted, shifted
from engram.scoring.metrics import Targets
from engram.settings.errors import Names, Refused
from engram.settings.experiment import Experiment

RECALLS: Final = (
    "It holds representations and targets of the client's training rows, by which it predicts: "
    "whoever has the file has these."
)
"""The note of a model that is a ``Recalling``."""

_BLOCK = 1024  # rows that are represented at once


def without_medians(schema: Schema | None) -> Schema | None:
    """Returns a schema that refuses missing values, if medians of rows elsewhere stand for them."""
    return replace(schema, missing="refuse") if schema and schema.missing == "median" else schema


def form_of(module: nn.Module) -> Form:
    """Returns the form of a network that ``plain_module`` returned."""
    kinds: dict[type[nn.Module], Form] = {
        Mixture: "mixture",
        Recalling: "recalling",
        Shifted: "shifted",
    }
    return kinds.get(type(module), "network")


def served_of(
    e: Experiment,
    method: Method,
    network: Model,
    store: MemoryStore,
    received: Slots,
    client: int,
    *,
    before: int,
    names: Names,
) -> Served:
    """Returns the served model of a client, from the broadcast and its memory in ``store``.

    Raises:
        MemoryMismatch: Its memory is another method's or network's.
    """
    initial, never = network.init(torch_generator(e.seed, Stream.MODEL)), unseen(e, names)
    recollection = Recollection(store, method, initial, moments=False, device="cpu", unseen=never)
    memory = recollection.recall(client, before=before)
    return method.serve(received, memory.kept, memory.trained)


def is_settled(served: Served) -> bool:
    """Returns whether a client's rows have no part in its models: chosen by loss, or fine-tuned."""
    return served.weights is not None or (len(served.models) == 1 and not served.tuned)


def settled(served: Served, trainer: Callable[[], Trainer], client: int) -> Served:
    """Returns a client's served model, chosen and fine-tuned.

    ``trainer`` makes one that has the client's rows; it is called only if they are needed.
    """
    return served if is_settled(served) else trainer().scorer.models.settled(served, client)


def check_finite(experiment: Experiment, served: Served, name: str) -> None:
    """Refuses models that are no longer numbers after fine-tuning."""
    e = experiment
    if not all(map(is_finite, served.models)):
        raise Refused(
            f"client {name} has no model: after fine-tuning, by {e.adapt_steps} steps of "
            f"adapt-lr {e.adapt_lr:g}, it is not finite; lower adapt-lr"
        )


def plain_module(
    network: Model, served: Served, targets: Targets, data: Callable[[], FederatedData], client: int
) -> nn.Module:
    """Returns a served model as one plain module, in evaluation mode.

    Args:
        network: The network.
        served: As ``settled`` returns it.
        targets: What the targets are, as ``Task.targets``.
        data: Loads data with the client's rows; called only if these vote.
        client: The client's number.
    """
    assert network.module is not None  # for mypy: every network that is built by name has it
    modules = [network.module({n: x.cpu() for n, x in w.items()}) for w in served.models]
    if served.weights is not None:
        return Mixture(modules, served.weights, targets).eval()
    (module,), votes = modules, served.neighbors
    if served.shift is not None:
        module = shifted(module, served.shift).eval()
    if votes is None:
        return module
    train = data().train
    rows = torch.from_numpy(train.rows[client])
    blank = Recalling(module, votes, torch.zeros(0, network.width), torch.zeros(0))
    taken = [train.take(some, exact=True) for some in torch.split(rows, _BLOCK)]
    with torch.no_grad():
        memory = torch.cat([blank.represent(x)[1] for x, _ in taken])
    return Recalling(module, votes, memory, torch.cat([y for _, y in taken])).eval()
