"""Functions that numba compiles.

numba caches compiled functions on disk and checks only the function's own file for changes. So a
compiled function must call compiled functions of the same file only.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compiles a function at its first call, and caches it if a folder can be written to.

    Dividing by 0 gives infinity or NaN, as in numpy: to look for it would slow down every loop.
    """
    try:
        kept: Any = njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # no folder can be written to
        kept = njit(error_model="numpy")(function)
    return cast("Function", kept)  # which has the same signature
