"""Rows that a model has not seen, read as those were that it has learned from."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from engram.core.arrays import Bools
from engram.core.standardization import Tokenizer
from engram.data.arrays import Own
from engram.data.federated import FederatedData, Split, described, seen_as
from engram.data.image_axes import Shaping
from engram.data.lazy import Place, RowNumbers
from engram.data.readers.images import CLASS, files_decoded, images_in
from engram.data.readers.npz import in_order, read_npy, read_npz
from engram.data.readers.table_files import EXCEL, TABLES, read_rows, read_text
from engram.data.schema.columns import Column, Kind, Schema
from engram.data.schema.declared import Declared, declare
from engram.data.schema.encoding import encode, filled, read_cells, read_texts
from engram.data.schema.fitting import fit
from engram.data.tables.raw_tables import framed, labels_of
from engram.data.tables.survival_columns import BESIDE, survival_columns
from engram.data.time_cells import TimeCells
from engram.networks.base import Inputs
from engram.scoring.tasks import TASKS
from engram.settings.data import DataSettings
from engram.settings.errors import DataError
from engram.settings.experiment import Experiment

if TYPE_CHECKING:
    import pandas as pd


class NewRows(NamedTuple):
    """Rows that a model has not seen.

    Attributes:
        x: As a network takes them.
        size: How many there are.
        others: Columns of a table that are no inputs, by name, or ``file`` of images.
        targets: ``y`` and ``y_names`` as the source has them, as far as it does: of a table a
            column of ``others``, of images the names of their folders.
        schema: The schema of a table, with what stands for a missing value in these rows.
        missing: By column of a table's inputs, the rows where its value is missing.
        beside: Returns ``others`` of a CSV file as they are written, with more columns; see
            ``CsvText.beside``.
    """

    x: Inputs
    size: int
    others: Mapping[str, Any] = MappingProxyType({})
    targets: Mapping[str, Any] = MappingProxyType({})
    schema: Schema | None = None
    missing: Mapping[str, Bools] = MappingProxyType({})
    beside: "Callable[[pd.DataFrame], bytes] | None" = None


def read_new_rows(
    path: Path, kind: Kind, settings: Mapping[str, Any], *, of_one_client: bool = False
) -> NewRows:
    """Reads rows: a .csv, .xlsx or .npz file, a folder of .npy files, or one of images.

    Args:
        path: Where they are.
        kind: What the rows are like that the model has learned from.
        settings: Those of the run, by key, as its exports have them.
        of_one_client: Whether medians of these rows stand for values that are missing in them.

    Raises:
        DataError: If they cannot be read, or are other rows; it says everything that is wrong.
    """
    if path.suffix.lower() in TABLES:
        found = _of_file(path, kind, settings, of_one_client)
    elif kind.units.text:
        raise DataError(f"{path} must be a .csv or .xlsx file, since the model takes texts")
    elif path.is_dir() and not kind.columns and not any(path.glob("x*.npy")):
        files = images_in(path)
        folders = [file.parent for file in files]
        y = {} if path in folders else {"y": np.array([folder.name for folder in folders])}
        alpha = settings.get("images") == "alpha"
        x = _shaped(path, {"x": files_decoded(path, files, alpha=alpha)}, kind, settings)
        found = NewRows(x, len(files), {"file": [str(file) for file in files]}, y)
    else:
        arrays: Mapping[str, Any] = read_npy(path) if path.is_dir() else read_npz(path)
        if kind.columns:
            found = _table(path, framed(path, {"x_names": kind.columns, **arrays}), kind, "", False)
        else:
            arrays = in_order(path, arrays, kind.schema.inputs) if kind.schema else arrays
            x = _shaped(path, arrays, kind, settings)
            found = NewRows(x, len(tree_leaves(x)[0]))
        found = found._replace(targets={n: arrays[n] for n in ("y", "y_names") if n in arrays})
    if kind.inputs and described(found.x) != kind.inputs:
        raise DataError(f"{path} must hold rows of {kind.inputs}, got {described(found.x)}")
    return found


def _of_file(path: Path, kind: Kind, settings: Mapping[str, Any], of_one_client: bool) -> NewRows:
    own = {key: settings[key] for key in DataSettings.all_keys() if key in settings}
    columns, tokenizer = declare(DataSettings.model_validate(own)), kind.units.text
    file = columns.schema.file
    frame = read_rows(path, file)
    text = None if path.suffix.lower() in EXCEL else read_text(path, file)
    if tokenizer and columns.text is None:
        why = "the model names no column of texts, as older versions did: export it anew"
        raise DataError(f"{path}: {why}")
    if tokenizer:
        found = _texts(path, frame, columns, tokenizer)
    else:
        if learned := kind.schema:
            known = tuple(c for c in columns.schema.columns if c.name in learned.by_name)
            schema = learned.at_site(replace(columns.schema, columns=known))
            kind = kind._replace(schema=schema)
        found = _table(path, frame, kind, columns.target, of_one_client)
        if found.targets and columns.schema.of_role("event") in found.others:
            beside = survival_columns(path, frame, columns.schema)
            found = found._replace(targets={**found.targets, BESIDE: beside})
    if text is None:
        return found
    copied = [k for k, name in enumerate(frame.columns) if name in found.others]
    return found._replace(beside=partial(text.beside, copied))


def _table(path: Path, frame: Any, kind: Kind, target: str, of_one_client: bool) -> NewRows:
    schema = kind.schema
    if schema is None:
        expected = "an .npz file or a folder, since the model's inputs have no names"
        raise DataError(f"{path} must be {expected}")
    cells = read_cells(schema, path, frame)
    if of_one_client and schema.missing == "median":
        schema = filled(schema, cells)
    single = kind.inputs and kind.units.inputs is None
    x = encode(schema, path, cells).astype(np.float32 if single else np.float64)
    beside = {str(name): frame[name] for name in frame.columns if name not in schema.names}
    targets = {"y": beside[target]} if target in beside else {}
    gone = {name: cells[name].isna().to_numpy() for name in schema.names}
    return NewRows(torch.from_numpy(x), len(frame), beside, targets, schema, gone)


def _texts(path: Path, frame: Any, columns: Declared, tokenizer: Tokenizer) -> NewRows:
    x = read_texts(path, frame, columns).tokens(tokenizer)
    beside = {str(name): frame[name] for name in frame.columns if name not in columns.inputs}
    targets = {"y": beside[columns.target]} if columns.target in beside else {}
    return NewRows(torch.from_numpy(x), len(frame), beside, targets)


def _shaped(path: Path, found: Mapping[str, Any], kind: Kind, settings: Mapping[str, Any]) -> Any:
    shaping = Shaping.of(settings.get("model", ""), settings.get("images", "auto"))
    whole = kind.inputs.startswith("int64")  # the network may be unknown here
    exact = kind.units.inputs is not None
    own = Own(path, "values", shaping=shaping._replace(whole_numbers=whole, exact=exact))
    return seen_as(own.inputs(found))


class Newcomer(NamedTuple):
    """A client that no run has seen.

    Attributes:
        x: Its rows, as networks take them.
        y: Their targets; None if they have none.
        size: How many rows there are.
        kind: The kind of the run's rows; the schema of a table with what stands for a missing value
            in these rows.
        name: What it is called.
    """

    x: Inputs
    y: Tensor | None
    size: int
    kind: Kind
    name: str

    def data(self, rows: RowNumbers, client: int) -> FederatedData:
        """Returns some of its rows as a federation's, at a client's number.

        They are the rows to learn from, and those that few-shot scoring fine-tunes on.
        """
        y = torch.zeros(self.size) if self.y is None else self.y
        split = Split(self.x, y, [rows[:0]] * client + [rows])
        found = FederatedData(split, split, self.kind.outputs, {client: self.name})
        return found._replace(schema=self.kind.schema, units=self.kind.units)


def read_newcomer(path: Path, kind: Kind, experiment: Experiment) -> Newcomer:
    """Reads rows, with targets if there are some; for the formats see ``read_new_rows``.

    A table has targets if it has the target's column; another file, if it has ``y``; a folder of
    images, if these are in folders of their classes.

    Raises:
        DataError: If they cannot be read, or are other rows.
    """
    e = experiment
    found = read_new_rows(path, kind, e.to_config(), of_one_client=True)
    kind = kind if found.schema is None else kind._replace(schema=found.schema)
    if not found.size:
        raise DataError(f"{path} must hold some rows")
    newcomer = Newcomer(found.x, None, found.size, kind, path.stem)
    y, targets = found.targets.get("y"), TASKS[e.task].targets
    if y is None:
        return newcomer
    name = CLASS if "file" in found.others else "y"
    if path.suffix.lower() in TABLES:
        name = e.target_column
        column = fit(y.to_frame(), declare(e).schema).schema.column(name)
        y = labels_of(path, column, y)
    if BESIDE in found.targets:
        y = found.targets[BESIDE].targets(path, y)
    if len(y) != found.size:
        raise DataError(f"{path}: y must have {found.size} rows, as x has, got {len(y)}")
    target = Column(name, values=tuple(kind.class_names))
    own = Own(path, targets, kind.outputs, target=target, cells=TimeCells.of(e))
    labels, outputs, _ = own.labels(y, Place(path, name))
    if outputs != kind.outputs:
        raise DataError(f"{path}: y must have {kind.outputs} values a row, got {outputs}")
    return newcomer._replace(y=torch.from_numpy(labels))
