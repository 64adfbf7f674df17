"""Cases with corrupted data files: archives of arrays, and tables."""

import io
import random
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.fuzz.commands import SMALL
from benchmarks.fuzz.spoil import spoil_bytes, spoil_file
from client.hosts.molar import TableSites
from client.memory import RamStore
from federation.data.arrivals import drawn_arrivals, table_arrivals
from federation.data.bandits import read_classes, read_logged, read_ratings
from federation.data.environments import table_environment
from federation.data.federated import federated_data, model_for, own_data
from federation.data.few_shot import load_few_shot
from federation.data.tables import own_table, read_table, table_data
from federation.experiment import Experiment
from simulations.engine import simulate

_DTYPES: Final = (
    "f4",
    "f8",
    "f2",
    "i1",
    "i8",
    "u1",
    "u8",
    "c8",
    "?",
    "S3",
    "U3",
    "M8[s]",
    "V4",
    "U0",
)
_SHAPES: Final = (
    (),
    (0,),
    (12,),
    (12, 3),
    (12, 0),
    (0, 3),
    (12, 4, 4),
    (12, 3, 4, 4),
    (12, 1, 2, 2, 2),
)


def _array(rng: random.Random) -> npt.NDArray[Any]:
    shape, dtype = rng.choice(_SHAPES), np.dtype(rng.choice(_DTYPES))
    draw = np.random.default_rng(rng.randrange(2**32))
    if dtype.kind in "fc":
        found = draw.normal(size=shape).astype(dtype)
        if found.size and rng.random() < 0.4:
            found.flat[0] = rng.choice((np.nan, np.inf, -np.inf, 65000.0))
        return np.asarray(found)
    if dtype.kind == "u" and rng.random() < 0.3:
        return np.full(shape, 255, dtype)
    return np.asarray(draw.integers(-2 if rng.random() < 0.3 else 0, 3, size=shape)).astype(dtype)


def _change(rng: random.Random, arrays: dict[str, npt.NDArray[Any]]) -> None:
    what, name = rng.randrange(5), rng.choice(list(arrays))
    if what == 0:
        del arrays[name]
    elif what == 1:
        arrays[rng.choice(("x", "y", "task", "x_train", "x_names", "task_names", "é"))] = _array(
            rng
        )
    elif what == 2 and arrays[name].size and _real(arrays[name]):
        spoilt = arrays[name].astype(rng.choice(("f8", "i8")))
        whole = spoilt.dtype.kind == "i"
        numbers = (-1, 2**40, 2**62, 7) if whole else (np.nan, np.inf, 1e300, -1)
        spoilt.flat[rng.randrange(spoilt.size)] = rng.choice(numbers)
        arrays[name] = spoilt
    elif what == 3:
        arrays[name] = (
            arrays[name].astype(rng.choice(("f2", "S9", "U9", "c16", "V8")))
            if _real(arrays[name])
            else _array(rng)
        )
    else:
        arrays[name] = _array(rng)


def _real(array: npt.NDArray[Any]) -> bool:
    return array.dtype.kind in "biuf"


def _write_npz(rng: random.Random, path: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Writes an archive that may be corrupted."""
    for _ in range(rng.choice((0, 1, 1, 2))):
        if arrays:
            _change(rng, arrays)
    how = rng.random()
    if how < 0.5:
        np.savez(path, **dict[str, Any](arrays))
    else:
        _strange_archive(rng, path, arrays)
    if how > 0.8:
        path.write_bytes(spoil_bytes(rng, path.read_bytes()))
    if how > 0.97:
        spoil_file(rng, path)


def _strange_archive(
    rng: random.Random, path: Path, arrays: Mapping[str, npt.NDArray[Any]]
) -> None:
    kinds = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    with zipfile.ZipFile(path, "w", rng.choice(kinds)) as archive:
        for name, array in arrays.items():
            stream = io.BytesIO()
            np.lib.format.write_array(stream, np.asarray(array))
            archive.writestr(f"{name}.npy", rng.choice(_MEMBERS)(rng, stream.getvalue()))
        if rng.random() < 0.2:
            archive.writestr(rng.choice(("readme.txt", "../x.npy", "x.npy", "a/b.npy")), b"hello")
    if rng.random() < 0.1:  # marked as encrypted
        path.write_bytes(
            path.read_bytes().replace(b"PK\x01\x02\x14\x03\x14\0\0", b"PK\x01\x02\x14\x03\x14\0\1")
        )


def _header(text: str) -> bytes:
    data = text.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(data)) + data


def _claims(shape: str, descr: str) -> Callable[[random.Random, bytes], bytes]:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"
    return lambda rng, data: _header(text) + data[128:]


_MEMBERS: Final[tuple[Callable[[random.Random, bytes], bytes], ...]] = (
    *[lambda rng, data: data] * 60,
    _claims("(1099511627776,)", "'<f8'"),
    _claims("(1099511627776, 0)", "'<f8'"),
    _claims("(1099511627776,)", "'<U0'"),
    _claims("(-1, -8)", "'<f8'"),
    _claims("(4611686018427387904, 4)", "'<f8'"),
    _claims("(" + "1," * 100 + ")", "'<f8'"),
    _claims("(12, True)", "'<f8'"),
    _claims("(12,)", "'|O'"),
    _claims("(12,)", "[('a', '<f8'), ('b', '<i8')]"),
    _claims("(12,)", "('<f8', (2,))"),
    _claims("(12,)", "[1, 2]"),
    _claims("(12,)", "-" * 3000 + "1"),
    _claims("(" * 3000, "'<f8'"),
    lambda rng, data: data + b"\0" * 2**22,
    spoil_bytes,
    lambda rng, data: b"\x93NUMPY\x03\x00" + data[8:],
    lambda rng, data: b"\x93NUMPY\x09\x00" + data[8:],
)


def classes_npz(rng: random.Random, here: Path) -> None:
    """Archives for classification."""
    draw = np.random.default_rng(rng.randrange(2**32))
    y = np.arange(120) % 3
    x = draw.normal(size=rng.choice(((120, 4), (120, 8, 8), (120, 8, 8, 3)))).astype("f4")
    arrays: dict[str, npt.NDArray[Any]] = {"x": x, "y": y, "task": np.arange(120) % 4}
    if rng.random() < 0.3:
        arrays = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    path = here / "mine.npz"
    _write_npz(rng, path, arrays)
    special = SMALL | {
        "dataset": f"npz:{path}",
        "partition": rng.choice(("halves", "iid", "natural", "blocks")),
        "initial-batch-size": 2,
        "rows-per-class": 2,
        "test-rows-per-class": 2,
        "num-classes": rng.choice((0, 0, 0, 3, 1000)),
        "model": rng.choice(("mlp", "linear", "cnn")),
        "adapt-steps": 1,
    }
    e = Experiment.from_config(special)
    way = rng.random()
    if way < 0.1:
        load_few_shot("omniglot", _renamed(path, "omniglot28.npz"))
    elif way < 0.2:
        read_classes(e.dataset, data_dir=here, dim=rng.choice((0, 1, 4)))
    elif way < 0.3:
        meta_ban = {"method": "meta-ban", "num-clients": 3, "hidden": "4"}
        drawn_arrivals(
            e.from_config({"dataset": e.dataset, "data-dir": e.data_dir} | meta_ban)
        ).turn(0)
    elif way < 0.4:
        own_data(e, e.dataset, rng.choice((0, 3)))
    elif way < 0.9:
        data = federated_data(e)
        model_for(e, data.kind)
    else:
        simulate(e, here / "run")


def _renamed(path: Path, name: str) -> Path:
    if path.is_file():
        path.rename(path.with_name(name))
    return path.parent


def table_npz(rng: random.Random, here: Path) -> None:
    """Archives of tables, and of logged rounds."""
    draw = np.random.default_rng(rng.randrange(2**32))
    arrays: dict[str, npt.NDArray[Any]] = {
        "x": draw.normal(size=(60, 3)),
        "y": draw.normal(size=60),
    }
    arrays["task"] = np.arange(60) % 4
    if rng.random() < 0.3:
        arrays["x_names"] = np.array(["a", "b", rng.choice("abc")])
    if rng.random() < 0.3:
        arrays["task_names"] = np.array(["p", "q", "r", "s"])
    if rng.random() < 0.2:
        arrays |= {"y": draw.normal(size=(60, 2)), "y_names": np.array(["y", rng.choice("yz")])}
    logged = rng.random() < 0.25
    if logged:
        arrays = {
            "users": np.arange(9) % 2,
            "arms": draw.normal(size=(9, 3, 2)),
            "rewards": np.ones(9),
        }
        arrays |= {"chosen": np.zeros(9, int), "propensities": np.full(9, 0.5)}
    path = here / "mine.npz"
    _write_npz(rng, path, arrays)
    if logged:
        read_logged(path)
    else:
        _use_table(rng, here, f"npz:{path}")


def _use_table(rng: random.Random, here: Path, dataset: str) -> None:
    method = rng.choice(("molar", "molar", "molar-bandit", "meta-ban"))
    special: dict[str, Any] = {
        "dataset": dataset,
        "method": method,
        "num-clients": 4,
        "target-column": rng.choice(("y",) * 9 + ("z", "")),
        "task-column": rng.choice(("task",) * 9 + ("y", "x")),
        "test-fraction": rng.choice((0.2, 0.2, 0.5, 0.999)),
    }
    special |= {} if method == "meta-ban" else {"intercept": rng.random() < 0.5}
    own: dict[str, dict[str, Any]] = {
        "molar": {"family": rng.choice(("linear", "logistic", "poisson"))},
        "molar-bandit": {"num-rounds": 2, "arms": 2, "first-batch": 2},
        "meta-ban": {"num-rounds": 2, "arms": 2, "hidden": "4"},
    }
    special |= own[method]
    e = Experiment.from_config(special)
    if rng.random() < 0.1:
        own_table(e, dataset, 3)
    elif rng.random() < 0.1:
        read_table(dataset, "y", "task", drop=[rng.choice(("x", "a", "x0"))])
    elif rng.random() < 0.6:
        data = table_data(e)
        if method == "molar":
            TableSites(e, data, RamStore())
        elif method == "meta-ban":
            table_arrivals(e, data).turn(0)
        else:
            table_environment(e, data, 1)
    else:
        simulate(e, here / "run")


_CELLS: Final = (
    "",
    "x",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "9" * 400,
    "é",
    '"',
    "\0",
    "1,2",
    "0x1",
    "1 000",
    "TRUE",
    "2026-01-01",
)


def _write_csv(rng: random.Random, path: Path, names: list[str], rows: list[list[str]]) -> None:
    """Writes a table that may be corrupted."""
    for _ in range(rng.choice((0, 1, 1, 3))):
        what = rng.randrange(8) if rows else 1
        if what == 0:
            row = rng.choice(rows)
            row[-1:] = [rng.choice(_CELLS)]
            rng.shuffle(row)
        elif what == 1:
            names[rng.randrange(len(names))] = rng.choice(
                ["", "y", "task", "x", "\0", "a" * 10_000]
            )
        elif what == 2:
            del rng.choice(rows)[-1:]
        elif what == 3:
            rng.choice(rows).append("1")
        elif what == 4:
            column = rng.randrange(len(names))
            for row in rows:
                row[column : column + 1] = [rng.choice(("", "1", "b"))]
        elif what == 5:
            del rows[rng.choice((0, 1, 3)) :]
        elif what == 6:
            rows[0].extend(["1"] * rng.choice((10, 100_000)))
        else:
            names.extend(f"c{k}" for k in range(rng.choice((1, 1000))))
    text = "\n".join(",".join(row) for row in [names, *rows])
    path.write_text(text, encoding=rng.choice(("utf-8",) * 9 + ("utf-16", "utf-8-sig")))
    how = rng.random()
    if how < 0.25:
        path.write_bytes(spoil_bytes(rng, path.read_bytes()))
    elif how < 0.3:
        spoil_file(rng, path)


def table_csv(rng: random.Random, here: Path) -> None:
    """Tables of sites."""
    rows = [
        [f"{rng.gauss(0, 1):.3f}", f"{rng.random():.3f}", str(i % 2), f"s{i % 4}"]
        for i in range(60)
    ]
    path = here / "mine.csv"
    _write_csv(rng, path, ["x", "w", "y", "task"], rows)
    _use_table(rng, here, f"csv:{path}")


def bandit_table(rng: random.Random, here: Path) -> None:
    """Tables of arms and their rewards."""
    rows = [[f"{rng.random() / 2:.3f}", f"{rng.random():.3f}", f"s{i % 4}"] for i in range(40)]
    path = here / "arms.csv"
    _write_csv(rng, path, ["x", "y", "task"], rows)
    special = {
        "method": "meta-ban",
        "dataset": f"csv:{path}",
        "num-clients": 4,
        "hidden": "4",
        "arms": rng.choice((2, 1000)),
        "num-rounds": 2,
        "meta-steps": 1,
        "user-steps": 1,
    }
    e = Experiment.from_config(special)
    if rng.random() < 0.7:
        table_arrivals(e, table_data(e)).turn(rng.choice((0, 2**40)))
    else:
        simulate(e, here / "run")


def ratings_csv(rng: random.Random, here: Path) -> None:
    """Tables of ratings."""
    rows = [[str(i % 20), str(i % 31), str(i % 5 + 1)] for i in range(600)]
    path = here / "ratings.csv"
    _write_csv(rng, path, ["user", "item", "rating"], rows)
    read_ratings(path, top_users=rng.choice((2, 19, 2000)), top_items=rng.choice((2, 30)), groups=2)
