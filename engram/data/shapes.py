"""The dtype and shape of an input row, as text that nodes and the server compare."""

import json
import math
import re
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Generator, Tensor
from torch.utils._pytree import tree_map

from engram.networks.base import Inputs

_DTYPES: Final = {"float32": torch.float32, "int64": torch.int64}
_LEAF: Final = re.compile(r"(float32|int64)\[((?:\d{1,9}(?:,\d{1,9}){0,7})?)\]", re.ASCII)
_MOST_LEAVES: Final = 64


def described(inputs: Inputs) -> str:
    """Returns the dtype and shape of a row as models see it: ``float32[1,28,28]``.

    Several inputs are described in JSON: ``["int64[80]", "float32[3]"]``, or an object by name.

    Args:
        inputs: A tensor of rows (n, ...), or a tuple or dictionary of such.
    """

    def leaf(x: Tensor) -> str:
        dtype = "int64" if x.dtype == torch.int64 else "float32"
        return f"{dtype}[{','.join(map(str, x.shape[1:]))}]"

    text = tree_map(leaf, inputs)
    return text if isinstance(text, str) else json.dumps(text)


def example(text: str, rows: int = 2) -> Inputs:
    """Returns ``rows`` drawn rows of the described dtype and shape, the same each time.

    Numbers are in [0, 1), as grey levels are, and whole numbers are 1: a token that every
    embedding has, and the length of a sequence that is not empty.

    Raises:
        ValueError: If the text is not one that ``described`` writes.
    """
    check(text)
    draw = Generator().manual_seed(0)

    def drawn(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        if dtype == torch.int64:
            return torch.ones(rows, *shape, dtype=dtype)
        return torch.rand(rows, *shape, generator=draw)

    return _made(text, drawn)


def check(text: str) -> None:
    """Checks a description, which is untrusted: nothing of the claimed size is allocated.

    Raises:
        ValueError: If the text is not one that ``described`` writes.
    """
    kind = _made(text, lambda dtype, shape: None)
    count = 1 if kind is None else len(kind)
    if not 0 < count <= _MOST_LEAVES:
        raise ValueError(f"inputs must be 1 to {_MOST_LEAVES}, got {count}")


def size(text: str) -> int:
    """Returns how many numbers a described row has."""
    return sum(math.prod(int(n) for n in shape.split(",") if n) for _, shape in _LEAF.findall(text))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"inputs must be described as float32[3] is, got {text[:40]!r}") from error


def _made(text: str, make: Callable[[torch.dtype, tuple[int, ...]], Any]) -> Any:
    """Returns what is made of the dtype and shape of each of the described inputs."""

    def made(kind: Any) -> Any:
        if isinstance(kind, dict):
            return {name: made(one) for name, one in kind.items() if _flat(one)}
        if isinstance(kind, list):
            return tuple(made(one) for one in kind if _flat(one))
        match = _LEAF.fullmatch(kind) if isinstance(kind, str) else None
        if match is None:
            raise ValueError(f"inputs must be described as float32[3] is, got {str(kind)[:40]!r}")
        dtype, shape = match.groups()
        return make(_DTYPES[dtype], tuple(int(n) for n in shape.split(",") if n))

    return made(text if _LEAF.fullmatch(text) else _parsed(text))


def _flat(kind: Any) -> bool:
    if isinstance(kind, dict | list):
        raise ValueError("inputs must be one tensor, or a tuple or dictionary of tensors")
    return True
