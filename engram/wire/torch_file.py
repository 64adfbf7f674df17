"""Tensors as ``torch.save`` writes them, read from files of whoever made them.

What ``torch.load`` reads with ``weights_only`` runs nobody's code, but may take any amount of time
and memory: members of the archive may be compressed, and the pickle in it make arrays of bytes of
any length, or keys whose hashes never end. So the archive must be stored as it is, and its pickle
consist of what names and tensors need.
"""

import io
import pickle
import pickletools
import zipfile
from typing import Final

import torch

from engram.core.types import Params
from engram.data.readers.npz import UNREADABLE
from engram.settings.errors import one_line

_PICKLE: Final = "data.pkl"
_ENTRY: Final = 2**12  # bytes of it for a member of the archive
_OPERATIONS: Final = frozenset(
    (
        *("PROTO", "STOP", "MARK", "GLOBAL", "BINPERSID", "REDUCE", "EMPTY_DICT", "SETITEM"),
        *("SETITEMS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "BINUNICODE"),
        *("BININT", "BININT1", "BININT2", "LONG1", "NEWFALSE", "NEWTRUE"),
        *("BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    )
)
_GLOBALS: Final = {
    *("collections OrderedDict", "torch.storage UntypedStorage"),
    *("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3"),
    *(f"torch {n}" for n, each in vars(torch).items() if isinstance(each, torch.dtype)),
    *(f"torch {n}" for n in vars(torch) if n.endswith("Storage")),
}


def tensors_to_saved(params: Params) -> bytes:
    """Returns tensors as what ``torch.load`` reads."""
    file = io.BytesIO()
    torch.save(dict(params), file)
    return file.getvalue()


def tensors_from_saved(data: bytes) -> Params:
    """Returns the tensors.

    Raises:
        ValueError: If the bytes are not such an archive, or hold something else besides.
    """
    try:
        found = dict(torch.load(io.BytesIO(_plain(data)), weights_only=True))
        if any(not isinstance(name, str) for name in found):
            raise ValueError("a name must be text")
        if sum(leaf.nbytes for leaf in found.values()) > len(data):
            raise ValueError("its tensors are larger than the file")
        return found
    except (*UNREADABLE, AttributeError, pickle.UnpicklingError) as error:
        raise ValueError(f"it holds no tensors: {one_line(str(error))}") from error


def _plain(data: bytes) -> bytes:
    """Returns the archive as it has been looked at, with no other index that might be read.

    Raises:
        ValueError: If it is compressed, or its pickle is another; besides, one of ``UNREADABLE``.
    """
    plain = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(plain, "w") as copy:
        members = archive.infolist()
        stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
        if not stored or sum(member.file_size for member in members) > len(data):
            raise ValueError("its archive must be stored as it is, got one that is compressed")
        for member in members:
            contents = archive.read(member)
            if member.filename.rpartition("/")[2] == _PICKLE:
                if len(contents) > _ENTRY * len(members):
                    raise ValueError(f"its {_PICKLE} is too large for {len(members)} members")
                _check(contents)
            copy.writestr(member.filename, contents)
    return plain.getvalue()


def _check(pickled: bytes) -> None:
    """Refuses a pickle that does anything else than to name tensors.

    A tuple that is used twice may hold the like, and its hash take as long as two to their number.
    """
    tuples, before = set(), ""
    for operation, argument, _ in pickletools.genops(pickled):
        name = operation.name
        known = name in _OPERATIONS and (name != "GLOBAL" or argument in _GLOBALS)
        if not known or (name.endswith("GET") and argument in tuples):
            raise ValueError(f"it must hold tensors by name, got a pickle with {name} {argument}")
        if name.endswith("PUT") and before.startswith("TUPLE"):
            tuples.add(argument)
        before = name
