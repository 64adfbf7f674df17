"""Descriptions of trainings, which a node writes beside their memories when it opens them.

``training.json`` describes the models in these memories, and in what served the clients when they
were scored last.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from engram.client.row_limits import has_other_rows
from engram.client.training_folders import ABOUT
from engram.data.federated import FederatedData
from engram.data.file_models import readable
from engram.data.load_federation import federated_data, own_data
from engram.data.readers.digests import Rows, read_rows
from engram.data.schema.columns import Kind
from engram.data.standardize import in_units
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.settings.files import read_json, replace_file
from engram.settings.fingerprint import fingerprint
from engram.wire.checksums import checked, summed


class Training(NamedTuple):
    """A training, as far as a node knows it."""

    experiment: Experiment  # with the node's own data as the data set
    kind: Kind  # of the node's rows
    source: str  # fingerprint of the source code that trains
    own: bool  # whether the data set is the node's own, and no share of the run's
    rows: Rows | None = None  # the data when it learned from them; None if that is not known
    folder: Path = Path()  # of its memories, in the node's state

    @property
    def has_other_rows(self) -> bool:
        """Whether the data have changed since, as far as that is known."""
        return self.rows is not None and has_other_rows(self.rows, self.folder.parents[1])

    @property
    def run(self) -> str:
        """Name of the run's folder on the coordinator; empty if only Flower's number names it."""
        return Path(self.experiment.resume or self.experiment.out).name

    def data(self, client: int) -> FederatedData:
        """Returns the rows of a client, in the units of the run.

        Raises:
            DataError: If they cannot be read.
        """
        e = self.experiment
        if self.own:
            found = own_data(e, e.source, client)
        else:
            found = federated_data(e, named=False, hosted=[client])
        return in_units(found, self.kind.units)


def note_training(
    folder: Path, e: Experiment, kind: Kind, dataset: str, run: int = 0, rows: Rows | None = None
) -> None:
    """Describes a training's models in a file beside its memories; see ``Training``.

    ``dataset`` is the node's own data set, or empty; ``rows`` are None where no file has them.

    Raises:
        OSError: If it cannot be written.
    """
    settings = e.to_config() | ({"dataset": dataset} if dataset else {})
    about: dict[str, Any] = {"settings": settings, "kind": kind.to_json()}
    about |= {"source": fingerprint(), "own": bool(dataset), "run": run}
    about |= {"rows": rows._asdict()} if rows else {}
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(folder / ABOUT, json.dumps(summed(about)).encode())


def read_training(folder: Path) -> Training:
    """Reads the description of ``note_training``.

    Raises:
        Refused: If the file is missing, or damaged.
    """
    path = folder / ABOUT
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
        kind = Kind.from_json(about["kind"])
        rows = read_rows(about.get("rows"))
        return Training(experiment, kind, about["source"], bool(about["own"]), rows, folder)


def noted_rows(folder: Path) -> Rows | None:
    """Returns the rows that a training has learned from; None if it is new, or damaged."""
    try:
        return read_training(folder).rows
    except Refused:
        return None
