"""Files of bandit data: images and ratings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.bandits.environments.classes import LabeledRows
from engram.bandits.environments.ratings import Rated, rated
from engram.core.checks import must
from engram.core.machine import check_rows
from engram.core.streams import Stream, generator
from engram.data.lazy import Lazy
from engram.data.loading import load
from engram.data.readers.csv_files import read_csv
from engram.data.schema.cells import check_columns
from engram.data.schema.columns import Column, File, Schema
from engram.data.schema.fitting import fit
from engram.data.source import PERMUTED, Source
from engram.data.tables.raw_tables import labels_of
from engram.settings.errors import DataError


def read_classes(source: Source, *, data_dir: Path) -> LabeledRows:
    """Reads a data set for ``engram.bandits.environments.classes``, all its rows.

    Args:
        source: The data set; of ``permuted-NAME``, the pixels of all images of NAME are in an order
            of its own, the same for all and in all runs.
        data_dir: As in ``load``.

    Raises:
        DataError: As ``load`` says; or rows are more than one array.
    """
    parts = load(source.unpermuted, data_dir=data_dir, test_fraction=0.0, seed=0)
    x = np.concatenate([_whole(source, part) for part in (parts.x_train, parts.x_test)])
    x = x.reshape(len(x), -1)
    if source.kind == PERMUTED:
        x = x[:, generator(0, Stream.PARTITION).permutation(x.shape[1])]
    y = np.concatenate([parts.y_train, parts.y_test])
    if y.ndim != 1:
        raise DataError(must("dataset", source, "of one class a row, for a bandit of classes"))
    return LabeledRows(x, y)


def _whole(source: Source, x: Any) -> npt.NDArray[Any]:
    """Returns the inputs of a part; those of ``Lazy`` rows are read."""
    like = x.like if isinstance(x, Lazy) else x
    if not isinstance(like, np.ndarray):
        raise DataError(must("dataset", source, "of one array of inputs, for a bandit of classes"))
    if not isinstance(x, Lazy) or not len(x):
        return like[: len(x)]
    check_rows(f"{source}, read as a whole,", len(x) * like.nbytes)
    return np.asarray(x.take(np.arange(len(x))))


def read_ratings(
    path: Path,
    *,
    columns: Sequence[str] = ("user", "item", "rating"),
    top_users: int = 2000,
    top_items: int = 10_000,
    groups: int = 50,
    below: float = 2.0,
) -> Rated:
    """Reads a CSV file with a rating a row, for ``engram.bandits.environments.ratings``.

    Args:
        path: The file. It has a header.
        columns: What the columns of users, items and stars are called; MovieLens has ``userId``,
            ``movieId`` and ``rating``.
        top_users: As in ``rated``, and so are the others.
        top_items: How many items.
        groups: How many groups.
        below: Which ratings are bad.

    Raises:
        DataError: If it is no such table, or is too small for what is asked.
    """
    table = read_csv(path, File(), numbers=columns)
    check_columns(path, columns, table.column_names)
    frame = table.select(list(columns)).to_pandas()
    known = fit(frame, Schema(), others=columns).schema
    users, items = (labels_of(path, known.column(name), frame[name]) for name in columns[:2])
    stars = labels_of(path, Column(columns[2], "number"), frame[columns[2]])
    try:
        return rated(
            users,
            items,
            stars,
            top_users=top_users,
            top_items=top_items,
            groups=groups,
            below=below,
        )
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
