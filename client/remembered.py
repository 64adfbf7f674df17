"""Exports the model that a client remembers of a training, without the coordinator.

When a node opens a training, it writes ``training.json`` beside the training's memories. The file
describes the models in these memories.
"""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from torch import nn

from client.card import card
from client.coefficients import remembered
from client.memory import RamStore
from client.packages import Package
from client.serving import is_settled, plain_module
from client.training.recollection import Recollection
from engram.core.rounds import received_by, sent_to
from engram.core.served import is_known, unknown
from engram.models.plain import layered
from engram.tasks import TASKS
from engram.types import Params
from federation.checksums import checked, summed
from federation.data.federated import FederatedData, model_for
from federation.data.new_rows import InputColumn, input_columns
from federation.errors import DataError, Refused
from federation.experiment import Experiment
from federation.exported import Exported
from federation.files import read_json, replace_file
from federation.fingerprint import fingerprint
from federation.learning import server_side
from federation.methods.network import NetworkMethod
from federation.roster import Kind
from federation.stored import readable
from federation.streams import Stream, torch_generator

__all__ = ["ADAPT_THERE", "Training", "note_training", "read_training", "remembered_package"]

ADAPT_THERE: Final = (
    "copy the run's folder from the coordinator to the node, and make a model of the node's rows "
    "by engram adapt RUN --data ROWS"
)
"""Advice where the coordinator has the common model, and the node has the rows."""

_ABOUT = "training.json"


class Training(NamedTuple):
    """A training, as far as a node knows it.

    Attributes:
        experiment: Its settings, with the node's own data as the data set.
        kind: The kind of the node's rows.
        source: Fingerprint of the source code that trains.
    """

    experiment: Experiment
    kind: Kind
    source: str


def note_training(folder: Path, experiment: Experiment, kind: Kind, dataset: str) -> None:
    """Describes a training's models in a file beside its memories.

    Args:
        folder: The training's folder.
        experiment: The settings.
        kind: The kind of the node's rows.
        dataset: The node's own data set; empty for the experiment's.

    Raises:
        OSError: If it cannot be written.
    """
    settings = experiment.to_config() | ({"dataset": dataset} if dataset else {})
    about = {"settings": settings, "kind": kind.to_json(), "source": fingerprint()}
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(folder / _ABOUT, json.dumps(summed(about)).encode())


def read_training(folder: Path) -> Training:
    """Reads what ``note_training`` wrote.

    Raises:
        Refused: If the file is missing, or damaged.
    """
    path = folder / _ABOUT
    if not path.is_file():
        raise Refused(
            f"{path} is not there: the memories are of an earlier version, whose networks are not "
            "known here; export to a .safetensors file for their arrays"
        )
    about = checked(read_json(path))
    if about is None:
        raise Refused(f"{path} is damaged: its checksum is missing or wrong")
    with readable(folder):
        experiment = Experiment.from_config(about["settings"] | {"device": "cpu"})
        return Training(experiment, Kind.from_json(about["kind"]), about["source"])


def remembered_package(training: Training, client: int, memory: Params) -> Package:
    """Returns the model that a client remembers, with its card.

    Raises:
        Refused: If it remembers none, or only a part of one.
    """
    e = training.experiment
    known: dict[str, Any] = {
        "what": f"personal model of {client}",
        "settings": e.to_config(),
        "client": str(client),
        "source": training.source,
    }
    if isinstance(e.own, NetworkMethod):
        module, table = _network(training, client, memory), ""
        classes, columns = training.kind.class_names, _columns(training)
        known |= {"kind": training.kind, "form": "network", "outputs": TASKS[e.task].targets}
    else:
        found = remembered(e, training.kind, memory)
        module, table = layered(found.state, getattr(e.own, "family", "linear")), found.table
        classes, columns = found.outputs, []
        kind = Kind(columns=tuple(found.columns))
        known |= {"kind": kind, "form": "layers", "outputs": "values"}
    exported = Exported(classes=classes, columns=columns, **known)
    # Only the coordinator knows how much privacy was spent.
    spent: dict[str, Any] | None = {} if e.privacy == "none" else None
    text = card(exported, made={}, rows=e.source.described, scores={}, privacy=spent)
    return Package(exported, module, text, [], table=table)


def _network(training: Training, client: int, memory: Params) -> nn.Module:
    e, network = training.experiment, model_for(training.experiment, training.kind)
    table = e.privacy != "none" and e.source.has_columns
    if e.standardize == "client" or (e.standardize == "auto" and table):
        raise Refused(
            f"client {client} has learned from columns standardized by its own rows, which "
            f"are not in its memory: {ADAPT_THERE}"
        )
    (method, _, _), store = server_side(e, training.kind), RamStore()
    store.save(client, memory, server_round=1, durable=0)
    initial = network.init(torch_generator(e.seed, Stream.MODEL))
    nobody = frozenset[int]()
    recollection = Recollection(store, method, initial, False, "cpu", nobody)
    kept = recollection.recall(client, before=2).kept
    received = unknown(received_by(*sent_to(method, method.server.start, [client]), 0))
    served = method.serve(received, kept, True)
    # A client's own model does not depend on the common one, nor on rows.
    if served.neighbors or not (is_settled(served) and is_known(served)):
        raise Refused(
            f"client {client} remembers no whole model: it is served by what is made of the common "
            f"one, which the coordinator has; {ADAPT_THERE}; or export the memory as it is to a "
            ".safetensors file"
        )

    def no_rows() -> FederatedData:
        raise AssertionError("no rows vote")

    return plain_module(network, served, TASKS[e.task].targets, no_rows, client)


def _columns(training: Training) -> list[InputColumn]:
    """Returns the names of input columns, if the data can still be read."""
    try:
        return input_columns(training.experiment)
    except DataError:
        return []
