"""A model in a folder of its own, which needs neither its run nor its data.

``model.safetensors``, ``model.onnx`` or ``adapter_model.safetensors`` holds the model;
``model.json`` says what it is, with a checksum of the model's file; ``card.md`` says it to people.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

import torch
from torch import nn

from engram.core.checks import must, require
from engram.core.machine import check_room
from engram.core.method import Neighbors
from engram.core.process_modes import own_modes
from engram.core.types import Params
from engram.data.federated import model_for, parameters_for
from engram.data.file_models import of_kind
from engram.data.ranges import Range
from engram.data.schema.columns import Kind
from engram.home.exporting import FORMATS, Format, check_onnx
from engram.home.model_json import ModelJson
from engram.home.onnx import on_tensors, to_onnx
from engram.home.onnx_sandbox import USUAL, Limits, run_apart
from engram.home.peft_adapter import to_peft
from engram.home.prediction_intervals import Interval
from engram.networks.base import called
from engram.networks.export_modules import Mixture, Recalling, Shifted, layered
from engram.scoring.tasks import TASKS
from engram.settings.errors import Refused, brief, one_line
from engram.settings.experiment import Experiment
from engram.settings.files import open_file, read_json, refusing, replace_file
from engram.wire.checksums import checked, summed
from engram.wire.tensors import tensors_from_bytes, tensors_to_bytes

Form = Literal["network", "shifted", "mixture", "recalling", "layers"]
"""Form of a model: the run's network; it with a bias before its last layer; several of them; it
with votes of the client's rows; or dense layers."""

_ABOUT: Final = "model.json"
_LARGEST: Final = 2**26  # bytes of it
_COPIES: Final = 3  # of a model's file: as bytes, as tensors, and in the module
_MOST: Final = 10**5  # arrays of a model
_LISTS: Final = "ranges", "intervals"
_UNFIT: Final = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""Errors of reading files that this module has not written."""


class Exported(NamedTuple):
    """An exported model's description.

    Attributes:
        what: In a few words.
        settings: Those of its run.
        kind: What rows are like.
        form: What the model is.
        outputs: What it predicts: see ``engram.home.prediction_intervals``.
        classes: What classes are called.
        client: Whose it is; empty if it is nobody's.
        source: Fingerprint of the source that trained it.
        ranges: Where most values of each input lie in the rows that it has learned from, as far as
            these are known where it is exported.
        intervals: Of its predictions, where these are values, by rows it has not learned from.
    """

    what: str
    settings: dict[str, Any]
    kind: Kind
    form: Form
    outputs: str
    classes: list[str]
    client: str
    source: str
    ranges: Sequence[Range] = ()
    intervals: Sequence[Interval] = ()

    @property
    def experiment(self) -> Experiment:
        """The settings of its run, for this machine's processor.

        Raises:
            Refused: If they name what this process does not know, such as a network of a user's.
        """
        return Experiment.from_config(self.settings | {"device": "cpu"})

    def to_json(self) -> dict[str, Any]:
        """Converts to JSON for ``from_json``."""
        lists = {key: [one._asdict() for one in getattr(self, key)] for key in _LISTS}
        return self._asdict() | {"kind": self.kind.to_json()} | lists

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Reads the JSON of ``to_json``.

        Raises:
            KeyError, TypeError, ValueError: If it is something else.
        """
        # What has a default, earlier versions did not write.
        known = {n: found[n] for n in cls._fields if n in found or n not in cls._field_defaults}
        kind = Kind.from_json(known["kind"])
        lists = {
            "ranges": [Range.from_json(each) for each in known.get("ranges", ())],
            "intervals": [Interval.from_json(each) for each in known.get("intervals", ())],
        }
        return cls(**known | {"kind": kind} | lists)


class Package(NamedTuple):
    """A model with its description and its card.

    Attributes:
        exported: The description.
        module: The model.
        card: The card, in Markdown.
        scores: The rows of the card's table of scores.
        notes: What its users should know.
        table: Its coefficients as a CSV file; empty for a network.
    """

    exported: Exported
    module: nn.Module
    card: str
    scores: list[tuple[str, ...]]
    notes: Sequence[str] = ()
    table: str = ""

    @property
    def weights(self) -> bytes:
        """The model's arrays, as a ``.safetensors`` file has them."""
        state = self.module.state_dict().items()  # copied: layers may share some, files cannot
        return tensors_to_bytes({name: leaf.detach().clone() for name, leaf in state})

    def write(self, folder: Path, format_: Format) -> None:
        """Writes all of it into a folder, which is made: ``model.json`` comes last.

        Raises:
            Refused: If it cannot be written, or the format cannot hold it.
        """
        texts = {"card.md": self.card} | ({"coefficients.csv": self.table} if self.table else {})
        if format_ == "peft":
            data, texts["adapter_config.json"] = to_peft(self.module)
        else:
            data = to_onnx(self.module, self.exported.kind) if format_ == "onnx" else self.weights
        sums = {"format": format_, "sha256": hashlib.sha256(data).hexdigest()}
        about = json.dumps(summed(self.exported.to_json() | sums), indent=2)
        with refusing(f"{folder} cannot be written"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(folder / FORMATS[format_], data)
            for name, text in (texts | {_ABOUT: about}).items():
                replace_file(folder / name, text.encode())


def read_exported(folder: str | Path) -> tuple[Exported, Format, bytes]:
    """Returns a folder's description, format and file.

    Raises:
        Refused: If the folder holds no model, or one that has been altered.
    """
    if not isinstance(folder, str | PathLike):
        raise Refused(must("folder", folder, "a path"))
    folder = Path(folder)
    if not (folder / _ABOUT).is_file():
        raise Refused(f"{folder} must be the folder of an exported model: it has no {_ABOUT}")
    about = checked(read_json(folder / _ABOUT, most=_LARGEST))
    if about is None:
        raise Refused(f"{folder / _ABOUT} has been altered: its checksum is missing or wrong")
    format_ = of_kind(ModelJson, about, folder / _ABOUT).format
    try:
        exported = Exported.from_json(about)
    except _UNFIT as error:
        raise Refused(f"{folder / _ABOUT} is of another version: {brief(error)}") from error
    path = folder / FORMATS[format_]
    with refusing(f"{path} cannot be read"), open_file(path, links=False) as file:
        size = os.fstat(file.fileno()).st_size
        check_room(str(path), _COPIES * size, "take a smaller model, or a larger machine")
        data = file.read(size)
    if hashlib.sha256(data).hexdigest() != about["sha256"]:
        raise Refused(f"{path} has been altered: its checksum is not the one in {_ABOUT}")
    return exported, format_, data


@own_modes()
def load_model(folder: str | Path) -> nn.Module:
    """Loads an exported model as a plain module of torch, in evaluation.

    It takes rows as the run's network does, (k, ...), grey levels scaled to [0, 1], and returns its
    outputs, (k, ...): of classes, logits. Of a network of your own it is a copy of your module, so
    that the process must know it by its name, as when it was run.

    Raises:
        Refused: If the folder holds no model, or one that has been altered, or of a network that
            this process does not know; or an ONNX file, which no module is made of.
    """
    return _loaded(folder, *read_exported(folder))


def _loaded(folder: str | Path, exported: Exported, format_: Format, data: bytes) -> nn.Module:
    if format_ != "safetensors":
        other = "onnxruntime runs" if format_ == "onnx" else "PeftModel.from_pretrained opens"
        expected = f"safetensors to be loaded as a module ({other} the others)"
        raise Refused(must(f"format of {folder}", format_, expected))
    with _named(folder):
        return rebuilt(exported, _tensors(data))


@contextmanager
def _named(folder: str | Path) -> Iterator[None]:
    try:
        yield
    except Refused as error:
        raise type(error)(f"{folder} cannot be loaded: {error}") from error


@contextmanager
def runner(
    folder: str | Path, limits: Limits = USUAL
) -> Iterator[tuple[Exported, Callable[[Any], Any]]]:
    """Returns a folder's description, and a function from rows to outputs, for any format.

    Args:
        folder: As ``engram export`` has written it.
        limits: What an ONNX file may take, which another process runs.

    Raises:
        Refused: As ``load_model``, but for ONNX files; or what runs these is not installed.
    """
    exported, format_, data = read_exported(folder)
    if format_ != "onnx":
        yield exported, partial(called, _loaded(folder, exported, format_, data))
        return
    check_onnx()
    with ExitStack() as stack:
        with _named(folder):
            runs = stack.enter_context(run_apart(data, limits))
        yield exported, on_tensors(runs, exported.kind)


def rebuilt(exported: Exported, state: Params) -> nn.Module:
    """Returns the model with this state.

    Raises:
        Refused: If the state is another model's, or the network is unknown here.
    """
    try:
        module = _blank(exported, state)
        module.load_state_dict(state)
    except Refused:
        raise
    except _UNFIT as error:  # in torch's words, of several lines
        why = " ".join(str(error).split())
        raise Refused(f"the network is not the one that was exported: {one_line(why)}") from error
    return module.eval()


def _blank(exported: Exported, state: Params) -> nn.Module:
    e = exported.experiment
    if exported.form == "layers":
        return layered(state, getattr(e.own, "family", "linear"))
    count, numbers = parameters_for(e, exported.kind), sum(leaf.numel() for leaf in state.values())
    require(count <= numbers, "parameters of its settings' network", count, f"at most {numbers}")
    network = model_for(e, exported.kind)
    start = network.init(torch.Generator())
    assert network.module is not None  # for mypy: every network that is built by name has it
    if exported.form == "mixture":
        weights = state["weights"]
        arrays = len(weights) * len(network.module(start).state_dict()) + 1
        require(arrays == len(state), f"arrays of {len(weights)} networks", len(state), f"{arrays}")
        require(len(weights) * count <= numbers, "their parameters", numbers, "as many")
        networks = [network.module(start) for _ in range(len(weights))]
        return Mixture(networks, weights, TASKS[e.task].targets)
    if exported.form == "shifted":
        return Shifted(network.module(start), state["bias"])
    if exported.form == "recalling":
        weight, k, scale = state["votes"].tolist()
        votes = Neighbors(weight, int(k), scale)
        return Recalling(network.module(start), votes, state["memory"], state["targets"])
    return network.module(start)


def _tensors(data: bytes) -> Params:
    try:
        found = tensors_from_bytes(data)
        require(len(found) <= _MOST, "arrays of a model", len(found), f"at most {_MOST}")
    except ValueError as error:
        raise Refused(f"{FORMATS['safetensors']}: {error}") from error
    return found
