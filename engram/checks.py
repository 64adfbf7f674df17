"""The check of arguments: an error names the argument, its value, and what is accepted."""

from typing import TYPE_CHECKING

from engram.brief import brief

if TYPE_CHECKING:
    from torch import Tensor


def must(name: str, value: object, expected: str) -> str:
    """Returns the words for a bad argument: e.g. "beta must be in (0, 1], got 1.5"."""
    return f"{name} must be {expected}, got {brief(value)}"


def require(ok: "bool | Tensor", name: str, value: object, expected: str) -> None:
    """Raises ``ValueError`` unless ``ok``, everywhere: e.g. "beta must be in (0, 1], got 1.5"."""
    if not (ok if isinstance(ok, bool) else bool(ok.all())):
        raise ValueError(must(name, value, expected))
