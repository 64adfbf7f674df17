"""State of the whole process: entered where a call begins, left where it ends, by one at a time.

Torch, numpy and Python keep modes and random generators for the process, or for a thread. What a
call computes depends on none that its caller has set, and the caller finds them as they were, also
where several calls are in threads at once.
"""

import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from functools import reduce
from typing import Any, Final, TypeVar

_T = TypeVar("_T")


class Shared:
    """A context of the whole process, entered by the first of those inside, left by the last."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._make, self._inside, self._left = make, 0, ExitStack()
        self._lock = threading.Lock()

    @property
    def inside(self) -> int:
        """Number of those inside."""
        return self._inside

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Enters it, unless somebody is inside."""
        with self._lock:
            if not self._inside:
                self._left.enter_context(self._make())
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._left.close()


# --- Modes ---------------------------------------------------------------------------------------


@contextmanager
def own_modes(named: "Named | None" = None) -> Iterator[None]:
    """Context in which modes are as they are when a process begins; also a decorator.

    Torch takes gradients, and computes in float32, on the CPU unless told otherwise, to full
    precision. Numpy warns of numbers that overflow; a warning is none that raises. Modes that only
    choose between ways of equal results, such as deterministic algorithms, stay the caller's. A
    call within a call enters nothing.

    Args:
        named: Things that were named in an earlier call, and are known by these names in here.
    """
    inside = _NAMED.get() is not None
    with ExitStack() as stack:
        if not inside or named is not None:
            stack.callback(_NAMED.reset, _NAMED.set({} if named is None else named))
        if not inside:
            _enter(stack)
        yield


def _enter(stack: ExitStack) -> None:
    stack.enter_context(_FILTERS())
    stack.enter_context(_VARIABLES())
    if "numpy" in sys.modules:
        import numpy as np  # noqa: PLC0415 - loaded by now

        stack.enter_context(np.errstate(all="warn", under="ignore"))
    if "torch" in sys.modules:
        stack.enter_context(_SHARED_BY_TORCH())
        _enter_torch(stack)


def _enter_torch(stack: ExitStack) -> None:
    import torch  # noqa: PLC0415 - loaded by now

    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.enable_grad())
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, enabled=False))
    if torch.get_default_device().type != "cpu":
        stack.enter_context(torch.device("cpu"))
    if not torch.full((), 2e-38).mul(0.1):  # a denormal number
        stack.callback(torch.set_flush_denormal, True)
        torch.set_flush_denormal(False)


@contextmanager
def _filters() -> Iterator[None]:
    if all(each[0] != "error" for each in warnings.filters):
        yield
        return
    with warnings.catch_warnings():
        warnings.filters = [
            ("default", *each[1:]) if each[0] == "error" else each for each in warnings.filters
        ]
        yield


@contextmanager
def _shared_by_torch() -> Iterator[None]:
    import torch  # noqa: PLC0415 - loaded by now

    autograd = torch.autograd
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        looks = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
        stack.callback(autograd.set_detect_anomaly, *looks)
        autograd.set_detect_anomaly(False)
        for name in _PRODUCTS if hasattr(torch.backends, "fp32_precision") else ():
            products: Any = reduce(getattr, name.split("."), torch.backends)
            if products.fp32_precision not in ("none", "ieee"):
                stack.callback(setattr, products, "fp32_precision", products.fp32_precision)
                products.fp32_precision = "ieee"
        yield


_PRODUCTS: Final = ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn", "cuda.matmul")  # since torch 2.9


@contextmanager
def _variables() -> Iterator[None]:
    lacking = [name for name in _SET_BY_IMPORTS if name not in os.environ]
    try:
        yield
    finally:
        for name in lacking:
            os.environ.pop(name, None)


_SET_BY_IMPORTS: Final = (
    *("GRPC_VERBOSITY", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "ORT_DISABLE_TELEMETRY"),
    *("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "TORCHINDUCTOR_CACHE_DIR"),
)
_VARIABLES: Final = Shared(_variables)
_FILTERS: Final = Shared(_filters)
_SHARED_BY_TORCH: Final = Shared(_shared_by_torch)

_FILTERING: Final = threading.RLock()


@contextmanager
def filtering() -> Iterator[None]:
    """Context of one thread that filters warnings, or redirects output."""
    with _FILTERING, warnings.catch_warnings():
        yield


_SETTING: Final = threading.Lock()


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Context in which this thread computes on so many of torch's; other threads keep their number.

    Torch gives the number that was set last to every thread that computes for the first time, so
    that it is set back by such a thread at once.
    """
    import torch  # noqa: PLC0415 - not every caller of this module loads it

    before = torch.get_num_threads()
    if before == count:
        yield
        return
    with _SETTING:
        others = elsewhere(torch.get_num_threads)
        torch.set_num_threads(count)
        elsewhere(torch.set_num_threads, others)
    try:
        yield
    finally:
        with _SETTING:
            torch.set_num_threads(before)
            if before != others:
                elsewhere(torch.set_num_threads, others)


def elsewhere(function: Callable[..., _T], *given: Any) -> _T:
    """Calls a function in a thread of its own, which has none of this thread's modes."""
    found: list[_T] = []
    thread = threading.Thread(target=lambda: found.append(function(*given)))
    thread.start()
    thread.join()
    return found[0]


_ONE_CORE: Final = ContextVar("_ONE_CORE", default=False)


@contextmanager
def on_one_core() -> Iterator[None]:
    """Context of work that uses one core, since others are left to work beside it."""
    token = _ONE_CORE.set(True)
    try:
        yield
    finally:
        _ONE_CORE.reset(token)


def one_core() -> bool:
    """Returns whether this is within ``on_one_core``."""
    return _ONE_CORE.get()


# --- Random numbers ------------------------------------------------------------------------------

_DRAWING: Final = threading.RLock()


@contextmanager
def drawing(seed: int | None = None) -> Iterator[None]:
    """Context in which one thread alone draws from the generators of the process.

    They are as before afterwards. Without a seed, whoever draws seeds torch's, and numpy's and
    Python's own are left alone.

    Args:
        seed: Of all three generators.
    """
    import torch  # noqa: PLC0415 - not every caller of this module loads it

    generator = torch.default_generator
    with _DRAWING, ExitStack() as stack:
        stack.callback(generator.set_state, generator.get_state())
        if seed is not None:
            import numpy as np  # noqa: PLC0415 - not every caller of this module loads it

            stack.callback(np.random.set_state, np.random.get_state())
            stack.callback(random.setstate, random.getstate())
            generator.manual_seed(seed)
            np.random.seed(seed % 2**32)
            random.seed(seed)
        yield


# --- Names ---------------------------------------------------------------------------------------

Named = dict[tuple[int, str], Any]
"""Things that were named in a call, by registry and name."""

_NAMED: ContextVar[Named | None] = ContextVar("_NAMED", default=None)


def named_here() -> Named:
    """Returns the objects that were registered in the current call."""
    return _NAMED.get() or {}


class Registry(dict[str, _T]):
    """Things by name: within ``own_modes``, those that were named in there come first.

    So two calls at once may each be given another function of the same name.
    """

    def __setitem__(self, name: str, value: _T) -> None:
        super().__setitem__(name, value)
        here = _NAMED.get()
        if here is not None:
            here[id(self), name] = value

    def __getitem__(self, name: str) -> _T:
        here, key = named_here(), (id(self), name)
        found: _T = here[key] if key in here else super().__getitem__(name)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the object registered under ``name``, or ``default``."""
        return named_here().get((id(self), name), super().get(name, default))
