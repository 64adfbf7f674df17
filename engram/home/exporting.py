"""Writes models of runs into folders: a client's own, the common one, a newcomer's."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from engram.arguments import arguments
from engram.core.checks import must
from engram.data.source import Source
from engram.home.learned import Learned, models_of
from engram.runs.release import check_released
from engram.runs.writer import RunWriter
from engram.settings.errors import Refused, refusals, told_with

if TYPE_CHECKING:
    from engram.home.exported import Package


Format = Literal["safetensors", "onnx", "peft"]
FORMATS: Final[dict[Format, str]] = {
    "safetensors": "model.safetensors",
    "onnx": "model.onnx",
    "peft": "adapter_model.safetensors",
}
"""The formats of a model's file, and what it is called."""


class Written(NamedTuple):
    """A model that has been written, and its folder."""

    folder: Path
    package: "Package"


def exported_into(
    learned: Learned, client: int | str | None, out: str | Path | None, format_: str
) -> Written:
    """Writes a client's model of a run, by number or name, or the common one: ``Run.export``."""
    given, wrong = arguments(out=out)
    wrong += refusals(lambda: check_format(format_))
    number = told_with(wrong, lambda: None if client is None else learned.number(client))
    folder = free_folder(given.out, "common" if number is None else learned.called(number))
    _ = learned.record.finished  # refused before anything is loaded
    check_released(learned.record)
    package = models_of(learned.experiment).package(learned, number)
    return written(learned, package, folder, check_format(format_))


def adapted_into(
    learned: Learned, data: str | Path, out: str | Path | None, format_: str
) -> Written:
    """Writes a model for a client that never took part: ``Run.adapt``.

    The rows may be a node's own, such as ``csv:PATH``.
    """
    given, wrong = arguments(data=data, out=out)
    checked = told_with(wrong, lambda: check_format(format_))
    path = Source(str(data)).path
    folder = free_folder(given.out, path.stem)
    _ = learned.record.finished  # refused before anything is loaded
    check_released(learned.record)
    found = models_of(learned.experiment).adapted(learned, path, path.stem)
    return written(learned, found, folder, checked)


def written(learned: Learned, package: "Package", folder: Path, format_: Format) -> Written:
    """Writes a model into a folder, which the run's record names first: see ``withdrawal_of``.

    Raises:
        Refused: One of them cannot be written.
    """
    record = RunWriter(learned.record.folder)
    record.append_export(learned.checkpoint.server_round, folder, package.exported.what)
    package.write(folder, format_)
    return Written(folder, package)


def free_folder(out: Path | None, name: str) -> Path:
    """Returns the folder that a model is written to; by default one that is named for its owner.

    Raises:
        Refused: If something is there already.
    """
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "client"
    plain = f"client-{plain}" if plain.isdecimal() else plain
    folder = Path(f"{plain}-model") if out is None else out
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"{folder} is there already: give out another folder")
    return folder


def check_format(name: str) -> Format:
    """Returns a format by its name.

    Raises:
        Refused: If there is none of this name, or what writes it is not installed.
    """
    found: dict[str, Format] = {known: known for known in FORMATS}
    if name not in found:
        raise Refused(must("format", name, f"one of {', '.join(found)}"))
    if name == "onnx":
        check_onnx()
    return found[name]


def check_onnx() -> None:
    """Refuses in one line if the packages for ONNX are not installed."""
    if any(find_spec(name) is None for name in ("onnx", "onnxruntime", "onnxscript")):
        raise Refused("format onnx needs more packages: pip install 'engram[onnx]'")
