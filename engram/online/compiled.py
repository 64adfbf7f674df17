"""Functions that numba compiles.

It keeps what it has compiled on disk, and takes it for current as long as the function's own file
is, whatever became of functions in other files: so one that is compiled calls those of its own file
only.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

__all__ = ["compiled"]

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compiles a function at its first call, and keeps that where there is a place for it."""
    try:
        kept: Any = njit(cache=True)(function)
    except RuntimeError:  # no folder can be written to
        kept = njit(function)
    return cast("Function", kept)  # which has the same signature
