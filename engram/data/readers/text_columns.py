"""Columns of a text file, block by block: numbers where all cells are some, and else texts."""

from collections.abc import Sequence
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pyarrow import compute

from engram.data.schema.cells import EXACT
from engram.data.schema.typed import plain_numbers

_BLOCK: Final = 2**20  # bytes that are read at once


class TextColumns:
    """Columns of which the rows come in blocks. So texts of numbers take no memory for long.

    Attributes:
        texts: By number of a column, cells of its blocks, from where it is known to be text.
    """

    def __init__(self, plain: Sequence[bool]) -> None:
        """``plain`` is whether each column may be one of numbers."""
        self.texts: dict[int, list[Any]] = {k: [] for k, may in enumerate(plain) if not may}
        self._is_text = ~np.array(plain, dtype=bool)
        self._blocks: list[npt.NDArray[np.float64]] = []

    @property
    def lost(self) -> list[int]:
        """Columns of text, with the numbers alone of their first blocks."""
        return [k for k, chunks in self.texts.items() if len(chunks) < len(self._blocks)]

    def add_lines(self, opened: IO[bytes], separator: str, skip: int) -> bool:
        """Adds all rows of a file below some lines; returns whether no cell has a quote."""
        for _ in range(skip):
            if b"\r" in opened.readline().rstrip(b"\r\n"):  # which ends each line by itself
                return False
        width = len(self._is_text)
        while lines := opened.readlines(_BLOCK):
            rows = [row for line in lines if (row := line.rstrip(b"\r\n"))]
            cut = compute.split_pattern(pa.array(rows, pa.string()), separator)
            widths = compute.list_value_length(cut).to_numpy()
            if (widths != width).any() or any(mark in b"".join(rows) for mark in (b'"', b"\r")):
                return False
            columns = np.arange(width * len(rows)).reshape(-1, width).T.ravel()
            self.add(cut.flatten().take(pa.array(columns)))
        return True

    def add(self, cells: pa.StringArray) -> None:
        """Adds a block of rows, cells column by column."""
        rows = len(cells) // len(self._is_text)
        self._blocks.append(np.empty((len(self._is_text), rows)))
        self._read(cells, rows, 0, len(self._is_text))

    def _read(self, cells: pa.StringArray, rows: int, low: int, high: int) -> None:
        """Reads columns: all at once if all are numbers, as in wide tables, and else by halves."""
        some = cells.slice(low * rows, (high - low) * rows)
        if not self._is_text[low:high].any() and (numbers := _numbers(some)) is not None:
            self._blocks[-1][low:high] = numbers.reshape(-1, rows)
        elif high - low == 1:
            self._is_text[low] = True
            self.texts.setdefault(low, []).append(some.take(pa.array(np.arange(rows))))
        else:
            half = (low + high) // 2
            self._read(cells, rows, low, half)
            self._read(cells, rows, half, high)

    def frame(self, names: Sequence[str]) -> Any:
        """Returns the columns as a data frame; it is called once."""
        plain = ~self._is_text
        numbers = np.empty((plain.sum(), sum(block.shape[1] for block in self._blocks)))
        end = numbers.shape[1]
        while self._blocks:
            block = self._blocks.pop()[plain]
            numbers[:, end - block.shape[1] : end] = block
            end -= block.shape[1]
        if plain.all():
            return pd.DataFrame(numbers.T, columns=names, copy=False)
        texts = {names[k]: pa.chunked_array(c, pa.string()) for k, c in self.texts.items()}
        found = dict(pa.table(texts).to_pandas().items())
        found |= zip(np.array(names)[plain].tolist(), numbers, strict=True)
        return pd.DataFrame({name: found[name] for name in names}, copy=False)


def _numbers(texts: pa.StringArray) -> npt.NDArray[np.float64] | None:
    """Returns texts as numbers, NaN where empty; None as ``plain_numbers``."""
    empty = (
        np.diff(np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1]) == 0
    )
    if empty.any():
        texts = compute.if_else(pa.array(empty), pa.scalar(None, pa.string()), texts)
    numbers = plain_numbers(texts)
    return None if numbers is None or (abs(numbers) >= EXACT).any() else numbers
