"""Cases with corrupted data: arrays, tables, images, Parquet and Arrow files."""

import io
import random
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from engram.bandits.environments.classes import read_classes
from engram.bandits.environments.ratings import read_ratings
from engram.data.load_federation import own_data
from engram.data.source import Source
from engram.meta.studies.few_shot import load_few_shot
from engram.settings.experiment import Experiment
from tests.fuzz.folders import SMALL, copied, sets, small
from tests.fuzz.spoil import spoil_bytes, spoil_file

_DTYPES: Final = (
    *("f4", "f8", "f2", "i1", "i8", "u1", "u8", "c8", "?", "S3", "U3", "M8[s]", "V4", "U0"),
)
_SHAPES: Final = (
    *((), (0,), (12,), (12, 3), (12, 0), (0, 3), (12, 4, 4), (12, 3, 4, 4), (12, 1, 2, 2, 2)),
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
    _claims("(1099511627776,)", "'<U0'"),
    *(_claims(shape, "'<f8'") for shape in ("(1099511627776,)", "(1099511627776, 0)", "(-1, -8)")),
    *(_claims(shape, "'<f8'") for shape in ("(4611686018427387904, 4)", "(12, True)")),
    *(_claims(shape, "'<f8'") for shape in ("(" + "1," * 100 + ")", "(" * 3000)),
    *(_claims("(12,)", descr) for descr in ("'|O'", "[('a', '<f8'), ('b', '<i8')]")),
    *(_claims("(12,)", descr) for descr in ("('<f8', (2,))", "[1, 2]", "-" * 3000 + "1")),
    lambda rng, data: data + b"\0" * 2**22,
    spoil_bytes,
    lambda rng, data: b"\x93NUMPY\x03\x00" + data[8:],
    lambda rng, data: b"\x93NUMPY\x09\x00" + data[8:],
)


def _used(
    rng: random.Random, here: Path, dataset: str, method: str, more: dict[str, Any]
) -> list[str]:
    """Returns a command that uses a data set: most only look at it, which is quick."""
    settings = small(method) | {"method": method, "dataset": dataset} | more
    path = dataset.partition(":")[2]
    way = rng.random()
    if way < 0.45:
        return ["data", *sets(settings), "--out", "rows.png"]
    if way < 0.7:
        return ["run", *sets(settings), "--out", "out"]
    name = rng.choice(("model", "model-table", "model-onnx", "model-common"))
    if way < 0.9:
        copied(here, name)
        return ["predict", name, path]
    copied(here, "fedavg")
    return ["adapt", "fedavg", "--data", path, "--out", "new"]


def _of_classes(rng: random.Random) -> dict[str, Any]:
    partition = rng.choice(("halves", "iid", "natural", "blocks", "dirichlet", "pathological"))
    more: dict[str, Any] = {"rows-per-class": 2, "test-rows-per-class": 2, "partition": partition}
    more["num-classes"] = rng.choice((0, 0, 0, 3, 1000))
    more["model"] = rng.choice(("mlp", "mlp", "linear", "cnn"))
    return more | rng.choice(({}, {}, {"images": "none"}, {"standardize": "client"}))


def _arrays(rng: random.Random) -> dict[str, npt.NDArray[Any]]:
    draw = np.random.default_rng(rng.randrange(2**32))
    x = draw.normal(size=rng.choice(((120, 4), (120, 8, 8), (120, 8, 8, 3)))).astype("f4")
    y = np.arange(120) % 3
    if rng.random() < 0.3:
        return {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    return {"x": x, "y": y, "task": np.arange(120) % 4}


def classes_npz(rng: random.Random, here: Path) -> list[str]:
    """Archives of arrays for networks."""
    _write_npz(rng, here / "mine.npz", _arrays(rng))
    return _used(rng, here, "npz:mine.npz", rng.choice(("fedavg", "local-moml")), _of_classes(rng))


def npy_folder(rng: random.Random, here: Path) -> list[str]:
    """Folders of arrays, whose rows are read as they are drawn."""
    (here / "mine").mkdir()
    arrays = _arrays(rng)
    for _ in range(rng.choice((0, 1))):
        _change(rng, arrays)
    for name, array in arrays.items():
        path = here / "mine" / f"{name}.npy"
        np.save(path, array)
        path.write_bytes(rng.choice(_MEMBERS)(rng, path.read_bytes()))
        if rng.random() < 0.1:
            spoil_file(rng, path)
    return _used(rng, here, "npy:mine", "fedavg", _of_classes(rng))


def _bomb() -> bytes:
    """Returns an image of few bytes and many pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 1, 0, 0, 0, 0)
    whole = b"\x89PNG\r\n\x1a\n"
    for part in (header, b"IDAT" + zlib.compress(bytes(2**20)), b"IEND"):
        whole += struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part))
    return whole


def images(rng: random.Random, here: Path) -> list[str]:
    """Folders of images."""
    draw = np.random.default_rng(rng.randrange(2**32))
    kind = rng.choice(("png", "jpg", "gif", "bmp", "tif"))
    mode = rng.choice(("L", "RGB"))
    for client in range(4):
        for label in "ab":
            folder = here / "mine" / f"c{client}" / label
            folder.mkdir(parents=True)
            for number in range(6):
                pixels = draw.integers(0, 255, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).convert(mode).save(folder / f"{number}.{kind}")
    files = sorted((here / "mine").rglob("*.*"))
    for path in rng.sample(files, rng.choice((0, 1, 2))):
        how = rng.random()
        if how < 0.5:
            spoil_file(rng, path)
        elif how < 0.7:
            Image.new(rng.choice(("1", "I", "F", "P", "RGBA")), (8, 8)).save(path, "tiff")
        elif how < 0.8:
            path.write_bytes(_bomb())
        else:
            path.rename(path.parent.parent / path.name)
    if rng.random() < 0.1:
        shutil.rmtree(rng.choice([path for path in (here / "mine").iterdir() if path.is_dir()]))
    return _used(rng, here, "images:mine", "fedavg", _of_classes(rng))


def table_npz(rng: random.Random, here: Path) -> list[str] | None:
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
    _write_npz(rng, here / "mine.npz", arrays)
    return _used_table(rng, here, "npz:mine.npz")


def _used_table(rng: random.Random, here: Path, dataset: str) -> list[str]:
    method = rng.choice(("molar", "molar", "molar-bandit", "meta-ban", "fedavg", "fedavg"))
    more: dict[str, Any] = {
        "target-column": rng.choice(("y",) * 9 + ("z", "")),
        "task-column": rng.choice(("task",) * 9 + ("y", "x")),
        "test-fraction": rng.choice((0.2, 0.2, 0.5, 0.999)),
    }
    own: dict[str, dict[str, Any]] = {
        "molar": {"family": rng.choice(("linear", "logistic", "poisson"))},
        "molar-bandit": {"arms": 2, "first-batch": 2},
        "meta-ban": {"arms": rng.choice((2, 2, 1000))},
        "fedavg": {
            "partition": rng.choice(("natural", "iid")),
            "missing": rng.choice(("refuse", "indicator", "median")),
            "schema": rng.choice(("", 'file.missing = ["?"]', 'columns.x = {values = ["x"]}')),
            "task": rng.choice(("classification", "regression")),
            "standardize": rng.choice(("auto", "client", "none")),
        },
    }
    return _used(rng, here, dataset, method, more | own[method])


_CELLS: Final = (
    *("", "x", "nan", "inf", "-inf", "1e400", "9" * 400, "é", '"', "\0", "1,2", "0x1", "1 000"),
    *("TRUE", "2026-01-01"),
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


def table_csv(rng: random.Random, here: Path) -> list[str]:
    """Tables of sites, and of arms and what they pay."""
    rows = [
        [f"{rng.gauss(0, 1):.3f}", f"{rng.random():.3f}", str(i % 2), f"s{i % 4}"]
        for i in range(60)
    ]
    _write_csv(rng, here / "mine.csv", ["x", "w", "y", "task"], rows)
    return _used_table(rng, here, "csv:mine.csv")


def ratings_csv(rng: random.Random, here: Path) -> None:
    """Tables of ratings, and archives that studies read."""
    if rng.random() < 0.5:
        rows = [[str(i % 20), str(i % 31), str(i % 5 + 1)] for i in range(600)]
        path = here / "ratings.csv"
        _write_csv(rng, path, ["user", "item", "rating"], rows)
        read_ratings(path, columns=("user", "item", "rating"), groups=2)
        return
    name = rng.choice(("omniglot28.npz", "mine.npz"))
    _write_npz(rng, here / name, _arrays(rng))
    if name == "omniglot28.npz":
        load_few_shot("omniglot", here)
    elif rng.random() < 0.5:
        read_classes(Source("npz:mine.npz"), data_dir=here)
    else:
        settings = SMALL | {"dataset": "npz:mine.npz"}
        e = Experiment.from_config({key: settings[key] for key in ("dataset", "num-clients")})
        own_data(e, e.source, rng.choice((0, 3)))


_COLUMNS: Final[tuple[Callable[[int], Any], ...]] = (
    lambda n: pa.array([0.5] * n),
    lambda n: pa.array([f"s{i % 4}" for i in range(n)]),
    lambda n: pa.array([None] * n),
    lambda n: pa.array([2**62] * n),
    lambda n: pa.array([[1.0, 2.0]] * n),
    lambda n: pa.array([[1.0] * (i % 3) for i in range(n)]),
    lambda n: pa.array([{"a": 1}] * n),
    lambda n: pa.array([{"bytes": b"x", "path": "/dev/zero"}] * n),
    lambda n: pa.array([b"\x89PNG"] * n),
    lambda n: pa.array([0] * n, pa.timestamp("s")),
    lambda n: pa.array([1] * n, pa.decimal128(38, 2)),
    lambda n: pa.array(["a"] * n).dictionary_encode(),
    lambda n: pa.array([float("nan"), *[1.0] * n][:n]),
    lambda n: pa.array([True] * n),
)


def columns_file(rng: random.Random, here: Path) -> list[str]:
    """Parquet and Arrow files."""
    n = rng.choice((60, 60, 60, 0, 1))
    columns = {
        "x": pa.array([rng.random() for _ in range(n)]),
        "w": pa.array([rng.random() for _ in range(n)]),
        "y": pa.array([i % 2 for i in range(n)]),
        "task": pa.array([f"s{i % 4}" for i in range(n)]),
    }
    for _ in range(rng.choice((0, 1, 1, 2))):
        name = rng.choice(("x", "w", "y", "task", "", "x" * 1000, "a,b", "\u202e"))
        columns[name] = rng.choice(_COLUMNS)(n)
    names = [*columns, "x"] if rng.random() < 0.05 else list(columns)
    table = pa.table([columns[name] for name in names], names=names)
    kind = rng.choice(("parquet", "arrow"))
    path = here / f"mine.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    if rng.random() < 0.4:
        spoil_file(rng, path)
    more = {"target-column": "y", "task-column": "task", "partition": "natural"}
    more |= rng.choice(({}, {"input-columns": "x"}, {"missing": "median"}, {"task": "next-token"}))
    return _used(rng, here, f"{kind}:{path.name}", "fedavg", more)
