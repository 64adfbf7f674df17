"""Functions that numba compiles.

numba caches compiled functions on disk and checks only the function's own file for changes. So a
compiled function must call compiled functions of the same file only.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compiles a function at its first call, and caches it if a folder can be written to."""
    try:
        kept: Any = njit(cache=True)(function)
    except RuntimeError:  # no folder can be written to
        kept = njit(function)
    return cast("Function", kept)  # which has the same signature
