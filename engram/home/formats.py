"""Formats of models' files."""

from importlib.util import find_spec
from typing import Final, Literal

from engram.core.checks import must
from engram.settings.errors import Refused

Format = Literal["safetensors", "onnx"]
FORMATS: Final[dict[Format, str]] = {"safetensors": "model.safetensors", "onnx": "model.onnx"}
"""The formats of a model's file, and what it is called."""


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
