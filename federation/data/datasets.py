"""Data sets of users, by name; and what they may hold, as the arrays of an npz file."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from engram.checks import require
from federation.errors import DataError, one_line

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from federation.data.lazy import Lazy

    # Inputs may be an array, or a tuple or dictionary of arrays.
    Rows = tuple[Any, npt.ArrayLike] | Dataset[Any]
    Data = Rows | Sequence[Rows] | Mapping[str, Rows]

__all__ = ["BUILT_IN", "DATASETS", "arrays_of", "by_client", "data", "read_named"]

BUILT_IN: Final = frozenset(
    {"digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "cifar100-coarse"}
    | {"sparse-linear", "sparse-logistic", "sparse-poisson", "linear-groups", "cosine-groups"}
)
"""Names of data sets that come with the platform."""

DATASETS: dict[str, Callable[..., Any]] = {}
"""Functions of users that return data, by name."""

_F = TypeVar("_F", bound=Callable[..., Any])


def data(function: _F) -> _F:
    """Makes a function known as a data set, by its own name; to be used as a decorator.

    ``two_cities`` is called ``two-cities`` in the setting ``dataset``. The function returns the
    rows of all clients, as ``engram.simulate`` takes them. Or it has one argument, the number of a
    client, and returns the rows ``(x, y)`` of that one: then a node reads those of the clients that
    it hosts, and no others, and ``partition`` must be ``natural``.

    Raises:
        ValueError: If the function has several arguments, or the name is that of a built-in data
            set.
    """
    name = getattr(function, "__name__", "").replace("_", "-")
    require(name not in BUILT_IN, "name of a data set", name, "one that no built-in data set has")
    count = len(inspect.signature(function).parameters)
    require(count <= 1, f"arguments of {name}", count, "none, or one: the number of a client")
    DATASETS[name] = function
    return function


def by_client(name: str) -> bool:
    """Returns whether a data set is one whose clients are read one by one."""
    return name in DATASETS and len(inspect.signature(DATASETS[name]).parameters) == 1


def read_named(name: str, clients: Sequence[int]) -> "dict[str, npt.NDArray[Any] | Lazy]":
    """Returns a user's data set, by the names that an npz file has for its arrays.

    Args:
        name: A key of ``DATASETS``.
        clients: Whose rows are read, ascending, where clients are read one by one. The array
            ``task`` then has their numbers.

    Raises:
        DataError: The function has failed, or returned something else than rows.
    """
    function = DATASETS[name]
    try:
        if not by_client(name):
            return arrays_of(function())
        arrays = arrays_of([function(client) for client in clients])
    except DataError:
        raise
    except Exception as error:  # anybody's function
        why = one_line(f"{type(error).__name__}: {error}")
        raise DataError(f"dataset {name} cannot be read: {why}") from error
    task = np.asarray(arrays["task"])
    for position in np.flatnonzero(np.bincount(task, minlength=len(clients)) == 0)[:1]:
        raise DataError(f"dataset {name}: client {clients[position]} has no rows")
    return arrays | {"task": np.asarray(clients)[task]}


def arrays_of(data: "Data") -> "dict[str, npt.NDArray[Any] | Lazy]":
    """Returns rows by the names that an npz file has for them; with ``task`` if clients have them.

    Args:
        data: As ``engram.simulate`` takes it.

    Raises:
        DataError: Some clients have arrays, and others data sets of torch.
    """
    from torch.utils.data import Dataset  # noqa: PLC0415 - names are listed without torch

    if isinstance(data, tuple | Dataset):
        xs, (y,) = _pairs([data])
        return {**_inputs(xs), "y": y}
    names, parts = zip(*data.items(), strict=True) if isinstance(data, Mapping) else ((), data)
    xs, ys = _pairs(parts)
    task = np.repeat(np.arange(len(parts)), [len(y) for y in ys])
    named = {"task_names": np.array(names)} if names else {}
    return {**_inputs(xs), "y": np.concatenate(ys), "task": task, **named}


def _pairs(parts: Sequence[Any]) -> tuple[Sequence[Any], Sequence[npt.NDArray[Any]]]:
    """Returns clients' inputs and targets; inputs of data sets together, as one client's."""
    from torch.utils.data import Dataset  # noqa: PLC0415 - as above

    from federation.data.map_style import inputs_of, targets_of  # noqa: PLC0415 - as above

    if not any(isinstance(part, Dataset) for part in parts):
        xs, ys = zip(*((x, np.asarray(y)) for x, y in parts), strict=True)
        return xs, ys
    if not all(isinstance(part, Dataset) for part in parts):
        raise DataError("data must be (x, y) of every client, or a data set of every client")
    return [inputs_of(parts)], [targets_of(part) for part in parts]


def _inputs(parts: Sequence[Any]) -> "dict[str, npt.NDArray[Any] | Lazy]":
    """Returns clients' inputs, one below the other, by the names that an npz file has for them."""
    from federation.data.lazy import Lazy  # noqa: PLC0415 - as above

    first = parts[0]
    if isinstance(first, Lazy):
        return {"x": first}
    if not isinstance(first, tuple | Mapping):
        return {"x": np.concatenate([np.asarray(x) for x in parts])}
    names = first if isinstance(first, Mapping) else range(len(first))
    return {f"x.{name}": np.concatenate([np.asarray(x[name]) for x in parts]) for name in names}
