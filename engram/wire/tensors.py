"""Tensors as bytes in the safetensors format, which is safe to read from untrusted files."""

import errno
from pathlib import Path

from safetensors import SafetensorError, numpy
from safetensors.torch import load, save, save_file

from engram.core.types import Params
from engram.settings.errors import one_line


def tensors_to_bytes(params: Params) -> bytes:
    """Returns tensors in the safetensors format."""
    held = {name: leaf.detach().cpu().contiguous() for name, leaf in params.items()}
    try:
        return numpy.save({name: leaf.numpy() for name, leaf in held.items()})  # ten times as fast
    except TypeError:  # of bfloat16 and others that numpy lacks
        return save(_apart(held))


def tensors_to_file(path: Path, params: Params) -> None:
    """Writes tensors to a new file in the safetensors format, as they are in memory.

    Raises:
        OSError: It cannot be written.
    """
    try:
        save_file(_apart(params), path)
    except SafetensorError as error:
        raise OSError(errno.EIO, one_line(str(error)), str(path)) from error
    path.chmod(0o600)


def _apart(params: Params) -> Params:
    held = {name: leaf.detach().cpu().contiguous() for name, leaf in params.items()}
    first: dict[int, str] = {}
    for name, leaf in held.items():  # the format does not know of arrays that share memory
        if first.setdefault(leaf.untyped_storage().data_ptr(), name) != name and leaf.numel():
            held[name] = leaf.clone()
    return held


def tensors_from_bytes(data: bytes) -> Params:
    """Returns the tensors, on the CPU.

    Raises:
        ValueError: If the bytes are not in this format, or of a type that torch does not have.
    """
    try:
        return load(data)
    except (SafetensorError, KeyError, AssertionError, RuntimeError) as error:
        raise ValueError(f"it holds no tensors: {error!r}") from error


def difference(found: Params, wanted: Params) -> str | None:
    """Describes a difference of tensors in names, shapes or types; None if there is none.

    An empty vector among the wanted ones stands for a vector of any length, since it may grow.
    """
    if found.keys() != wanted.keys():
        return f"names {sorted(found.keys() ^ wanted.keys())[:5]} are not in both"
    for name, leaf in wanted.items():
        here = found[name]
        grown = leaf.shape == (0,) and here.ndim == 1
        if here.dtype != leaf.dtype or not (here.shape == leaf.shape or grown):
            return (
                f"{name} is {here.dtype} of shape {tuple(here.shape)}, and not {leaf.dtype} of "
                f"shape {tuple(leaf.shape)}"
            )
    return None
