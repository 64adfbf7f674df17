"""Where rows come from: scikit-learn's digits, torchvision's data sets, or a user's arrays."""

import pickle
import shutil
from collections.abc import Callable, Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from federation.data.in_memory import IN_MEMORY, held
from federation.data.npz import named_labels, read_npz
from federation.errors import DataError, brief
from federation.streams import Stream, generator

__all__ = ["FILES", "PERMUTED", "Arrays", "fetch", "load"]

_Array = npt.NDArray[Any]
FILES: Final = ("npz", "csv")  # kinds of data sets that are files, named as KIND:PATH
PERMUTED: Final = "permuted-"  # before a name: images whose pixels are in another order
_NPZ: Final = "npz:"
_DIGITS: Final = "sklearn/datasets/data/digits.csv.gz"


class Arrays(NamedTuple):
    """A data set in memory, once.

    Attributes:
        x_train: Inputs, shape (n, channels, height, width) or (n, features): uint8 for images
            of 256 grey levels, which are scaled to [0, 1] when used, or float32, used as is.
        y_train: Classes 0..num_classes-1, shape (n,), int64.
        x_test, y_test: The same for the test rows.
        task_train, task_test: Whose row each is, 0..num_tasks-1; None if the data do not say.
        num_classes: Number of classes.
        task_names: What each task is called.
    """

    x_train: _Array
    y_train: _Array
    x_test: _Array
    y_test: _Array
    task_train: _Array | None
    task_test: _Array | None
    num_classes: int
    task_names: tuple[str, ...] = ()


def load(
    dataset: str, *, data_dir: Path, test_fraction: float, seed: int, num_classes: int = 0
) -> Arrays:
    """Loads a data set by name.

    Args:
        dataset: As the setting ``dataset``.
        data_dir: Folder of torchvision's data sets, and where it downloads them to.
        test_fraction: Share of the rows held out, within each class (and task), where the
            source has no test rows of its own.
        seed: Draws which rows those are.
        num_classes: Classes of a user's arrays, of which they may lack some; 0 for those that
            they hold.

    Raises:
        DataError: If the data set is unknown, missing, or not what it should be.
    """
    if dataset.startswith(_NPZ):
        path = Path(dataset.removeprefix(_NPZ))
        return _own(path, read_npz(path), test_fraction, seed, num_classes)
    if dataset.startswith(IN_MEMORY):
        return _own(Path("data"), held(dataset), test_fraction, seed, num_classes)
    if dataset == "digits":
        return _digits(test_fraction, seed)
    if dataset in _TORCHVISION:
        return _torchvision(dataset, data_dir)
    known = ", ".join(["digits", *_TORCHVISION, "npz:PATH"])
    raise DataError(f"dataset must be one of {known}, got {brief(dataset)}")


def _digits(test_fraction: float, seed: int) -> Arrays:
    # What sklearn.datasets.load_digits reads: importing that takes a second.
    table = np.loadtxt(str(distribution("scikit-learn").locate_file(_DIGITS)), delimiter=",")
    x = (table[:, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32)  # 17 grey levels
    y = table[:, -1].astype(np.int64)
    return _split(x, y, None, 10, test_fraction, seed)


def _split(
    x: _Array, y: _Array, task: _Array | None, classes: int, test_fraction: float, seed: int
) -> Arrays:
    """Holds out a share of the rows of each class, of each task if there are tasks."""
    stratum = y if task is None else task * classes + y
    rng = generator(seed, Stream.DATA_SPLIT)
    held_out = np.zeros(len(y), dtype=bool)
    for value in np.unique(stratum):
        rows = rng.permutation(np.flatnonzero(stratum == value))
        held_out[rows[: round(test_fraction * len(rows))]] = True
    return Arrays(
        x_train=x[~held_out],
        y_train=y[~held_out],
        x_test=x[held_out],
        y_test=y[held_out],
        task_train=None if task is None else task[~held_out],
        task_test=None if task is None else task[held_out],
        num_classes=classes,
    )


# --- A user's own arrays ---------------------------------------------------------------------


def _own(
    path: Path, arrays: Mapping[str, _Array], test_fraction: float, seed: int, num_classes: int
) -> Arrays:
    whole, parts = {"x", "y"}, {"x_train", "y_train", "x_test", "y_test"}
    if whole <= arrays.keys() and not parts & arrays.keys():
        x, y, task = arrays["x"], arrays["y"], arrays.get("task")
        names: list[str] = []
        y, classes = _classes(path, y, num_classes)
        x = _inputs(path, "x", x, y)
        if task is not None:
            _same_length(path, "task", task, y)
            if task.ndim != 1:
                raise DataError(f"{path}: task must be one column, got shape {task.shape}")
            tasks, task = np.unique(task, return_inverse=True)
            names = list(map(str, named_labels(path, arrays, "task", tasks).tolist()))
        found = _split(x, y, task, classes, test_fraction, seed)
        return found._replace(task_names=tuple(names))
    if parts <= arrays.keys():
        n = arrays["y_train"].size
        labels = [arrays[name].reshape(-1) for name in ("y_train", "y_test")]
        for part in labels:
            _check_labels(path, part)
        y, classes = _classes(path, np.concatenate(labels), num_classes)
        x_train = _inputs(path, "x_train", arrays["x_train"], y[:n])
        x_test = _inputs(path, "x_test", arrays["x_test"], y[n:])
        if (x_train.shape[1:], x_train.dtype) != (x_test.shape[1:], x_test.dtype):
            raise DataError(
                f"{path}: x_train and x_test must hold rows alike, got {x_train.dtype} of shape "
                f"{x_train.shape[1:]} and {x_test.dtype} of shape {x_test.shape[1:]}"
            )
        return Arrays(x_train, y[:n], x_test, y[n:], None, None, classes)
    raise DataError(
        f"{path} must hold either x and y (and task, if wanted), or x_train, y_train, x_test and "
        f"y_test; it holds {', '.join(sorted(arrays)) or 'nothing'}"
    )


def _classes(path: Path, y: _Array, num_classes: int) -> tuple[_Array, int]:
    _check_labels(path, y)
    numbers = np.unique(y)
    if num_classes:
        if numbers[-1] >= num_classes:
            raise DataError(
                f"{path}: y must hold classes 0 to {num_classes - 1} (num-classes is "
                f"{num_classes}), got {numbers[-1]}"
            )
        return y.astype(np.int64), num_classes
    if len(numbers) < 2 or numbers[-1] != len(numbers) - 1:
        shown = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
        raise DataError(
            f"{path}: y must hold at least 2 classes, numbered from 0 without gaps, got {shown}"
        )
    return y.astype(np.int64), len(numbers)


def _check_labels(path: Path, y: _Array) -> None:
    whole = y.ndim == 1 and np.issubdtype(y.dtype, np.integer) and y.size > 0 and y.min() >= 0
    if not whole:
        raise DataError(
            f"{path}: y must be one class number 0, 1, ... a row, got {y.dtype} of shape {y.shape}"
        )


def _inputs(path: Path, name: str, x: _Array, y: _Array) -> _Array:
    _same_length(path, name, x, y)
    channels = x.ndim != 4 or {x.shape[1], x.shape[3]} & {1, 3}
    empty = 0 in x.shape[1:]
    if x.ndim not in (2, 3, 4) or x.dtype.kind not in "uif" or not channels or empty:
        raise DataError(
            f"{path}: {name} must be numbers of shape (rows, features), (rows, height, width), or "
            "with 1 or 3 channels (rows, height, width, channels) or (rows, channels, height, "
            f"width), got {x.dtype} of shape {x.shape}"
        )
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in (1, 3):
        x = np.moveaxis(x, 3, 1)
    if x.dtype != np.uint8:
        x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise DataError(f"{path}: {name} must be finite, got NaN or infinity in some rows")
    return np.ascontiguousarray(x)


def _same_length(path: Path, name: str, array: _Array, y: _Array) -> None:
    if array.ndim == 0 or len(array) != len(y):
        raise DataError(
            f"{path}: {name} must have one row for each of the {len(y)} entries of y, "
            f"got shape {array.shape}"
        )


# --- torchvision -----------------------------------------------------------------------------


class _Source(NamedTuple):
    name: str  # in torchvision.datasets
    files: str  # where a user without a network puts what
    classes: int


_TORCHVISION: Final = {
    "mnist": _Source("MNIST", "the four *-ubyte files in MNIST/raw", 10),
    "fashion-mnist": _Source("FashionMNIST", "the four *-ubyte files in FashionMNIST/raw", 10),
    "cifar10": _Source("CIFAR10", "the folder cifar-10-batches-py", 10),
    "cifar100": _Source("CIFAR100", "the folder cifar-100-python", 100),
    "cifar100-coarse": _Source("CIFAR100", "the folder cifar-100-python", 20),
}


def _torchvision(dataset: str, data_dir: Path) -> Arrays:
    source = _TORCHVISION[dataset]
    parts: list[_Array] = []
    for train in (True, False):
        part = fetch(source.name, data_dir, name=dataset, files=source.files, train=train)
        x = np.asarray(part.data)
        x = x[:, None] if x.ndim == 3 else np.ascontiguousarray(np.moveaxis(x, 3, 1))
        y = _coarse(data_dir, train) if dataset == "cifar100-coarse" else part.targets
        parts += [x, np.asarray(y, dtype=np.int64)]
    x_train, y_train, x_test, y_test = parts
    return Arrays(x_train, y_train, x_test, y_test, None, None, source.classes)


def fetch(kind: str, data_dir: Path, *, name: str, files: str, **part: bool) -> Any:
    """Returns a part of one of torchvision's data sets, downloaded if it is not there.

    Args:
        kind: The data set's class in ``torchvision.datasets``.
        data_dir: Folder of torchvision's data sets.
        name: What users call it.
        files: Where a user without a network puts what.
        part: Which part, as the class wants to be told.

    Raises:
        DataError: If it is not there and cannot be downloaded.
    """
    make: Callable[..., Any] = getattr(_import_datasets(), kind)
    new = not data_dir.exists()
    try:
        return make(root=str(data_dir), download=False, **part)
    except (RuntimeError, OSError):  # torchvision's words for "not there, or damaged"
        try:
            return make(root=str(data_dir), download=True, **part)
        except Exception as error:  # whatever a network can do to a download
            if new:  # torchvision made it
                shutil.rmtree(data_dir, ignore_errors=True)
            raise DataError(
                f"{name} is not in {data_dir} and cannot be downloaded "
                f"({type(error).__name__}): put {files} under {data_dir}"
            ) from error


def _import_datasets() -> Any:
    # PyPI's torchvision next to a CPU build of torch fails on import ("operator torchvision::nms
    # does not exist"): it registers fake kernels for two operators of its compiled part, which
    # was built for CUDA. The data sets are pure Python, so declaring the two is enough.
    import torch  # noqa: PLC0415 - slow to import, not always needed

    try:
        from torchvision import datasets  # noqa: PLC0415 - slow to import, not always needed
    except RuntimeError:
        # torch leaves this class without annotations.
        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)  # its operators disappear with it
        from torchvision import datasets  # noqa: PLC0415 - slow to import, not always needed
    return datasets


_KEPT: Final[list[Any]] = []


def _coarse(data_dir: Path, train: bool) -> list[int]:
    # torchvision reads the fine labels only. It has just checked this file's digest.
    with (data_dir / "cifar-100-python" / ("train" if train else "test")).open("rb") as file:
        labels: list[int] = pickle.load(file, encoding="latin1")["coarse_labels"]
    return labels
