"""Rows of any source: scikit-learn's digits, torchvision's data sets, or a user's arrays."""

import pickle
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from importlib.metadata import distribution
from logging import getLogger
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.core.checks import clash, must
from engram.data.arrays import Arrays, HeldOut, Own, held_by_hash, held_out, train_and_test
from engram.data.image_axes import Shaping
from engram.data.lazy import is_frame
from engram.data.readers.images import CLASS, read_images
from engram.data.readers.in_memory import read_given
from engram.data.readers.leaf import read_leaf
from engram.data.readers.npz import in_order, read_npy, read_npz, task_arrays, with_task
from engram.data.schema.columns import File
from engram.data.schema.declared import Declared, check_client, declare
from engram.data.schema.written import read_schema
from engram.data.source import DATASETS, FILES, HUB, LIBRARY, TABLES, Source
from engram.data.time_cells import TimeCells
from engram.networks.vision import torchvision
from engram.scoring.tasks import CLASSIFICATION, TASKS
from engram.settings.data import DataSettings
from engram.settings.errors import DataError, Refused, brief
from engram.settings.experiment import FIRST, by_schema, read_by
from engram.settings.run import MachineSettings

_Array = npt.NDArray[Any]
_PLAIN: Final = declare(DataSettings.model_validate({}))
_AS_GIVEN: Final = Shaping()
_NO_CELLS: Final = TimeCells()
_OFFLINE: Final = ContextVar("_OFFLINE", default=False)
_TASKS: Final = frozenset(task_arrays("task"))


def load(
    source: Source,
    *,
    data_dir: Path,
    test_fraction: float,
    seed: int,
    task: str = CLASSIFICATION.name,
    num_classes: int = 0,
    cells: TimeCells = _NO_CELLS,
    shaping: Shaping = _AS_GIVEN,
    columns: Declared = _PLAIN,
    clients: Sequence[int] = (),
    by_hash: bool = False,
) -> Arrays:
    """Loads a data set.

    Args:
        source: The data set.
        data_dir: Folder of torchvision's data sets, and where it downloads them to.
        test_fraction: Share of the rows held out, within each class (and task), where the
            source has no test rows of its own.
        seed: Draws which rows those are.
        task: What is learned: a user's arrays hold its targets; the others hold classes.
        num_classes: Classes of a user's arrays, of which they may lack some; 0 for those that
            they hold.
        cells: Cells of time, of targets that are times.
        shaping: How a user's inputs are shaped.
        columns: What the columns of a file with a header are, and which values are in them.
        clients: Whose rows are read, ascending, of a user's data set whose clients are read one by
            one. They are its tasks 0, 1, ... in this order.
        by_hash: Whether a user's rows are held out by their hashes.

    Raises:
        DataError: If the data set is unknown, missing, or not what it should be.
    """
    split = partial(held_out, fraction=test_fraction, seed=seed)
    if source.is_given or source.is_file or source.kind == HUB:
        target = columns.schema.column(CLASS if source.kind == "images" else columns.target)
        targets, alone = TASKS[task].targets, columns.alone
        own = Own(source.path, targets, num_classes, shaping, target, alone, cells)
        hashed = partial(held_by_hash, fraction=test_fraction, seed=seed, clients=clients)
        arrays = _read(source, own, columns, clients, data_dir)
        if "schema" in arrays:
            own = own._replace(shaping=shaping._replace(exact=shaping.exact_tables))
        split = partial(split, clients=clients if source.by_client else None)
        return own.arrays(arrays, split, hashed if by_hash else None)
    if task != CLASSIFICATION.name:
        raise DataError(must("task", task, f"{CLASSIFICATION.name} for dataset {brief(source)}"))
    if source == "digits":
        return _digits(split)
    if source in _TORCHVISION:
        return _torchvision(source, data_dir)
    files = (f"{kind}:PATH" for kind in FILES)
    known = ", ".join(["digits", *_TORCHVISION, *files, f"{HUB}:NAME", *DATASETS])
    raise DataError(clash("dataset", source, f"one of {known}"))


def _read(
    source: Source, own: Own, columns: Declared, clients: Sequence[int], cache: Path
) -> Mapping[str, Any]:
    """Reads a user's rows by the names of an .npz file's arrays, and a table as a data frame."""
    kind, path, alpha = source.kind, source.path, own.shaping.images == "alpha"
    if kind in TABLES:
        from engram.data.tables.raw_tables import of_file  # noqa: PLC0415 - loads pandas

        return of_file(path, columns)
    if kind in LIBRARY:
        from engram.data.readers.hugging_face import read_columns  # noqa: PLC0415 - loads datasets

        return read_columns(kind, path, columns, own.targets, cache, alpha=alpha)
    arrays = read_arrays(source, clients, alpha=alpha)
    if is_frame(arrays.get("x")):
        from engram.data.tables.raw_tables import of_arrays  # noqa: PLC0415 - loads pandas

        return {**arrays, **of_arrays(path, arrays, columns)}
    if columns.text:
        wanted = "without a text for arrays: give frames"
        raise DataError(clash("schema", columns.text.name, wanted))
    if kind not in ("npz", "npy"):
        return arrays
    if columns.alone:
        return in_order(path, arrays)
    found, client = with_task(path, arrays, columns.client), columns.client
    check_client(path, columns, [client] if found.keys() & _TASKS else sorted(arrays))
    return found


def read_arrays(
    source: Source, clients: Sequence[int] = (), only: Collection[str] = (), *, alpha: bool = False
) -> Mapping[str, Any]:
    """Reads a source that is no table in a file, by the names of an .npz file's arrays.

    ``clients`` are as for ``load``, ``only`` names arrays of an .npz file; with ``alpha``
    transparency of images is a channel.

    Raises:
        DataError: It cannot be read.
    """
    if source.is_given:
        return read_given(source, clients)
    if source.kind == "images":
        return read_images(source.path, alpha=alpha)
    if source.kind == "leaf":
        return read_leaf(source.path)
    return read_npy(source.path) if source.kind == "npy" else read_npz(source.path, only)


def _digits(split: HeldOut) -> Arrays:
    pixels, y = _all_digits()
    x = (pixels.reshape(-1, 1, 8, 8) / 16).astype(np.float32)  # 17 grey levels
    return train_and_test(x, y, None, 10, split(y, None))


@cache  # of a comparison, every run needs them
def _all_digits() -> tuple[_Array, _Array]:
    # The file of scikit-learn's load_digits, whose import takes a second.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(file), delimiter=",")
    pixels, y = rows[:, :-1], rows[:, -1].astype(int)
    for array in (pixels, y):
        array.setflags(write=False)
    return pixels, y


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


@contextmanager
def without_downloads() -> Iterator[None]:
    """Context in which a data set that is not there is refused, rather than downloaded."""
    token = _OFFLINE.set(True)
    try:
        yield
    finally:
        _OFFLINE.reset(token)


def fetch(kind: str, data_dir: Path, *, name: str, files: str, **part: bool) -> Any:
    """Returns a part of one of torchvision's data sets, downloaded if it is not there.

    ``kind`` is its class in ``torchvision.datasets``, which is given ``part``; ``name`` and
    ``files`` are for messages to a user without a network.

    Raises:
        DataError: If it is not there and cannot be downloaded.
        Refused: If it is not there and must not be.
    """
    make: Callable[..., Any] = getattr(torchvision().datasets, kind)
    new = not data_dir.exists()
    try:
        return make(root=str(data_dir), download=False, **part)
    except (RuntimeError, OSError) as error:  # torchvision's words for "not there, or damaged"
        if _OFFLINE.get():
            raise Refused(
                f"{name} is not in {data_dir}, and this site's policy is against downloads: put "
                f"{files} there, or set downloads = true in the policy"
            ) from error
        try:
            return make(root=str(data_dir), download=True, **part)
        except Exception as error:  # whatever a network can do to a download
            if new:  # torchvision made it
                shutil.rmtree(data_dir, ignore_errors=True)
            raise DataError(
                f"{name} is not in {data_dir} and cannot be downloaded "
                f"({type(error).__name__}): put {files} under {data_dir}"
            ) from error


def _coarse(data_dir: Path, train: bool) -> list[int]:
    # torchvision reads the fine labels only. It has just checked this file's digest.
    with (data_dir / "cifar-100-python" / ("train" if train else "test")).open("rb") as file:
        labels: list[int] = pickle.load(file, encoding="latin1")["coarse_labels"]
    return labels


_log = getLogger("flwr.engram")
_FILE = File()


def follow_rows(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings with those that follow from rows that name their clients.

    The partition is by these names, and the number of clients theirs, unless others are given. It
    is said if another partition is.
    """
    defaults, given = DataSettings.defaults(), by_schema(given)
    dataset = given.get("dataset", defaults["dataset"])
    column = given.get("task-column", defaults["task-column"])
    folder = given.get("data-dir", MachineSettings.defaults()["data-dir"])
    if not all(isinstance(value, str) for value in (dataset, column, folder)):
        return dict(given)
    method, partition = str(given.get("method", FIRST)), given.get("partition", "natural")
    source = Source.of(dataset)
    found: dict[str, Any] = {"partition": "natural"} if source.by_client else {}
    file = read_schema(given["schema"]).file if given.get("schema") else File()
    if count := count_clients(source, column, Path(folder), file):
        if partition != "natural" and read_by(method, {"partition": ""}):
            told = "%s names its rows' clients, %d of them, and partition=%s gives out rows anew"
            _log.warning(told, source.described, count, partition)
        else:
            found = {"partition": "natural", "num-clients": count}
    return read_by(method, found) | dict(given)


def count_clients(source: Source, task_column: str, data_dir: Path, file: File = _FILE) -> int:
    """Number of clients that rows name; 0 if none, or if they cannot be read.

    Whoever loads them says why. ``file`` says how a text file writes them.
    """
    try:
        labels = _labels(source, task_column, data_dir, file)
    except DataError:
        return 0
    return len(np.unique(np.concatenate(labels).astype(str))) if labels else 0


def _labels(source: Source, task_column: str, data_dir: Path, file: File) -> list[Any]:
    kind, path = source.kind, source.path
    if kind in LIBRARY:
        from engram.data.readers.hugging_face import read_column  # noqa: PLC0415 - loads datasets

        return read_column(kind, path, task_column, data_dir)
    arrays: Mapping[str, Any] = {}
    if kind in TABLES:
        from engram.data.readers.table_files import read_rows  # noqa: PLC0415 - loads pandas

        arrays = {"x": read_rows(path, file, only=[task_column])}
    elif (source.is_given or source.is_file) and not source.by_client:
        arrays = read_arrays(source, only=task_arrays(task_column))
        arrays = with_task(path, arrays, task_column) if kind in ("npz", "npy") else arrays
    frame: Any = arrays.get("x")
    if is_frame(frame) and task_column in frame:
        return [frame[task_column].dropna().astype(str).str.strip()]
    return [arrays[key] for key in task_arrays("task") if key in arrays]
