"""Tables from CSV files to inputs of networks, beside ``pandas.read_csv``.

``python -m benchmarks.reading`` prints seconds of processor time, of the best of several turns, and
the memory that a process of its own takes at its peak, without what it has after imports.
"""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np
import pandas as pd
from rich.console import Console

from benchmarks.harness import numbers_table
from benchmarks.memory import forget_peak, peak
from engram.data.schema.declared import declare
from engram.data.schema.encoding import encode
from engram.data.tables.raw_tables import of_file
from engram.settings.data import DataSettings

SHAPES = ((2_000_000, 30), (300, 12_000))
"""Rows and columns of numbers; the target and the clients are two more."""

_TURNS = 5
_BLOCK = 100_000  # rows that are drawn and written at once


def write(folder: Path, rows: int, columns: int) -> Path:
    """Writes a table, and its schema beside it; returns the table's path."""
    path, rng = folder / f"{rows}x{columns}.csv", np.random.default_rng(0)
    names = [f"x{k}" for k in range(columns)]
    for start in range(0, rows, _BLOCK):
        count = min(_BLOCK, rows - start)
        block = pd.DataFrame(rng.normal(size=(count, columns)).round(4), columns=names)
        block["died"], block["ward"] = rng.integers(0, 2, count), rng.integers(0, 5, count)
        block.to_csv(path, mode="a", header=not start, index=False)
    kinds = dict.fromkeys(names, "number") | {"died": "whole", "ward": "whole"}
    tables = (f'[columns.{name}]\nkind = "{kind}"\n' for name, kind in kinds.items())
    path.with_suffix(".toml").write_text("".join(tables))
    return path


def read(path: Path, how: str) -> object:
    """Reads a table: by ``pandas``, by its ``schema``, or ``alone``."""
    if how == "pandas":
        return pd.read_csv(path)
    settings = {"target-column": "died", "task-column": "ward"}
    settings |= {"schema": str(path.with_suffix(".toml"))} if how == "schema" else {}
    table = of_file(path, declare(DataSettings.model_validate(settings)))
    return encode(table["schema"], path, table["x"])


def seconds(call: Callable[[], object], turns: int) -> float:
    """Returns the least processor time of several turns."""
    found = []
    for _ in range(turns):
        start = process_time()
        call()
        found.append(process_time() - start)
    return min(found)


def mebibytes(path: Path, how: str) -> float:
    """Returns the memory that a process takes to read a table."""
    words = [sys.executable, "-m", "benchmarks.reading", str(path), how]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def additional(path: Path, how: str) -> float:
    """Returns the memory that this process takes to read a table, once all is imported."""
    with TemporaryDirectory() as folder:
        read(write(Path(folder), 20, 2), how)
    before = forget_peak()
    read(path, how)
    return peak() - before


def measured(rows: int, columns: int, turns: int = _TURNS) -> dict[str, dict[str, float]]:
    """Returns seconds and mebibytes of each way to read a table, and their shares of pandas'."""
    with TemporaryDirectory() as folder:
        path = write(Path(folder), rows, columns)
        found = {
            how: {
                "s": seconds(partial(read, path, how), turns),
                "MiB": mebibytes(path, how),
            }
            for how in ("pandas", "schema", "alone")
        }
    for each in found.values():
        each |= {f"{key} / pandas": each[key] / found["pandas"][key] for key in ("s", "MiB")}
    return found


def main() -> None:
    """Prints a table for each shape; of a process that is to read one, its memory."""
    if len(sys.argv) == 3:
        print(additional(Path(sys.argv[1]), sys.argv[2]))
        return
    for rows, columns in SHAPES:
        headings = ("s", "/ pandas", "MiB", "/ pandas")
        table = numbers_table(f"{rows:,} rows x {columns:,} columns", *headings)
        for how, each in measured(rows, columns).items():
            figures = (each["s"], each["s / pandas"], each["MiB"], each["MiB / pandas"])
            table.add_row(how, *(f"{figure:.3g}" for figure in figures))
        Console().print(table)


if __name__ == "__main__":
    main()
