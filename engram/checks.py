"""One way to refuse a bad argument: name it, show it, say what would have been accepted."""

from torch import Tensor

from engram.brief import brief

__all__ = ["require"]


def require(ok: bool | Tensor, name: str, value: object, expected: str) -> None:
    """Raises ``ValueError`` unless ``ok``, everywhere: e.g. "beta must be in (0, 1], got 1.5"."""
    if not (bool(ok.all()) if isinstance(ok, Tensor) else ok):
        raise ValueError(f"{name} must be {expected}, got {brief(value)}")
