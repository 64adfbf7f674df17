"""The check of arguments: an error names the argument, its value, and what is accepted."""

from torch import Tensor

from engram.brief import brief

__all__ = ["require"]


def require(ok: bool | Tensor, name: str, value: object, expected: str) -> None:
    """Raises ``ValueError`` unless ``ok`` holds everywhere: "beta must be in (0, 1], got 1.5"."""
    if not (bool(ok.all()) if isinstance(ok, Tensor) else ok):
        raise ValueError(f"{name} must be {expected}, got {brief(value)}")
