"""Digest of all that a module holds beside the parameters that are trained."""

import hashlib
import io
import pickle
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn


def digest_of_constants(module: nn.Module, trained: Collection[str]) -> bytes | None:
    """Returns a digest of a module without its trained values.

    Two modules of one digest compute the same with the same parameters: it covers frozen layers,
    buffers, and what else the module holds, such as tensors and numbers that it drew.

    Returns:
        The digest; None if something in the module cannot be pickled.
    """
    held = [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]
    file = io.BytesIO()
    try:
        _Pickler(file, {id(leaf) for name, leaf in held if name in trained}).dump(module)
    except Exception:  # what a module holds is anybody's, and may raise anything
        return None
    return hashlib.sha256(file.getbuffer()).digest()


class _Pickler(pickle.Pickler):
    """Writes tensors as digests of their values, and those that do not count as nothing."""

    def __init__(self, file: io.BytesIO, aside: set[int]) -> None:
        super().__init__(file)
        self._aside = aside

    def persistent_id(self, part: Any) -> Any:
        if not isinstance(part, Tensor):
            return None
        if id(part) in self._aside:
            return "trained"
        values = part.detach().cpu().contiguous().flatten().view(torch.uint8)
        return str(part.dtype), tuple(part.shape), hashlib.sha256(values.numpy().data).digest()
