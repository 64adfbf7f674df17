"""The check of arguments: an error names the argument, its value, and the requirement."""

import reprlib
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Fault(NamedTuple):
    """Something that is wrong with settings, or data."""

    keys: tuple[str, ...]  # keys of the settings that it depends on; none where these are not known
    text: str
    columns: tuple[str, ...] = ()  # columns with a cell that the schema does not allow


def clash(key: str, value: object, expected: str, *others: str) -> Fault:
    """Returns the fault of a setting that conflicts with the settings ``others``."""
    return Fault((key, *others), must(key, value, expected))


def must(name: str, value: object, expected: str) -> str:
    """Returns the words for a bad argument: e.g. "beta must be in (0, 1], got 1.5"."""
    return f"{name} must be {expected}, got {brief(value)}"


def require(ok: "bool | Tensor", name: str, value: object, expected: str) -> None:
    """Raises ``ValueError`` unless ``ok``, everywhere: e.g. "beta must be in (0, 1], got 1.5".

    Under ``torch.func.vmap``, where a tensor's values cannot be looked at, nothing is raised.
    """
    if not (ok if isinstance(ok, bool) else _hidden(ok) or ok.all()):
        raise ValueError(must(name, value, expected))


def anywhere(found: "bool | Tensor") -> bool:
    """Returns whether a condition may hold: anywhere, or, under ``torch.func.vmap``, at all."""
    return found if isinstance(found, bool) else _hidden(found) or bool(found.any())


def _hidden(value: "Tensor") -> bool:
    import torch  # noqa: PLC0415 - a second to import, which checks of plain numbers do without

    return isinstance(value, torch.Tensor) and torch._C._functorch.is_batchedtensor(value)


def brief(value: object) -> str:
    """Returns the ``repr`` of a value, shortened if it is long."""
    return _SHORT.repr(value)


class _Short(reprlib.Repr):
    """Handles long texts, bytes and integers, which ``reprlib`` would first write out in full."""

    def repr_str(self, x: str, level: int) -> str:
        if level < self.maxlevel or len(x) > _TEXT:
            return super().repr_str(x, level)
        return repr(x)

    def repr_bytes(self, x: bytes, level: int) -> str:
        del level
        return repr(x[: self.maxstring]) + ("..." if len(x) > self.maxstring else "")

    def repr_int(self, x: int, level: int) -> str:
        digits = x.bit_length() <= 128  # Python refuses to write out thousands
        return super().repr_int(x, level) if digits else f"<integer of {x.bit_length()} bits>"


_SHORT: Final = _Short()
_TEXT: Final = 100  # characters of a text, such as a file's name, that is shown as it is
