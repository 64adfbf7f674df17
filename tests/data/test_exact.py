"""Numbers that float32 cannot tell apart are float64 until their columns are standardized."""

import logging

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import TensorDataset

import engram
from engram.data.load_federation import federated_data
from engram.data.readers.in_memory import arrays_of, hold
from engram.data.standardize import fitted, standardized
from engram.home.predicting import predict
from engram.settings.errors import DataError
from engram.settings.experiment import Experiment
from tests.support import write_npz

ROWS = 120
RNG = np.random.default_rng(0)
SECONDS = np.round(1.7e9 + 200 * RNG.normal(size=ROWS))  # float32 has steps of 128 s
X = np.column_stack([SECONDS, 1e8 + RNG.normal(size=ROWS)])
Y = (SECONDS > 1.7e9).astype("int64")
SITE = np.repeat(["a", "b", "c"], ROWS // 3)
NAMES = ["seconds", "offset"]
SETTINGS = {"method": "fedavg", "partition": "natural", "num_clients": 3, "model": "linear"}
# Whole numbers of one length are asked about.
SETTINGS |= {"schema": 'columns.seconds = {kind = "number"}'}


def frame():
    return pd.DataFrame(X, columns=NAMES).assign(y=Y, task=SITE)


def by_site(make):
    return hold(arrays_of({site: make(site == SITE) for site in "abc"}))


def written(folder, kind):
    """Returns the rows as a data set of a kind."""
    if kind == "csv":
        frame().to_csv(folder / "rows.csv", index=False)
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pandas(frame()), folder / "rows.parquet")
    elif kind == "npz":
        write_npz(folder / "rows.npz", x=X, y=Y, task=SITE)
    else:
        (folder / "rows.npy").mkdir()
        for name, array in {"x": X, "y": Y, "task": SITE}.items():
            np.save(folder / "rows.npy" / f"{name}.npy", array)
    return f"{kind}:{folder}/rows.{kind}"


FILES = ("csv", "parquet", "npz", "npy")
GIVEN = {
    "whole numbers": lambda own: (np.round(X[own]).astype("int64"), Y[own]),
    "frames": lambda own: (frame()[NAMES][own], Y[own]),
    "data sets": lambda own: TensorDataset(torch.tensor(X[own]), torch.tensor(Y[own])),
    "mixed types": lambda own: (np.round(X[own]).astype("int64") if own[40] else X[own], Y[own]),
}


@pytest.mark.parametrize("kind", [*FILES, *GIVEN])
def test_standardized_columns_have_the_variation_that_numpy_finds(tmp_path, kind):
    dataset = by_site(GIVEN[kind]) if kind in GIVEN else written(tmp_path, kind)
    x = np.round(X) if kind == "whole numbers" else X.copy()
    if kind == "mixed types":
        x[40:80] = np.round(x[40:80])
    for mode in ("federation", "client"):
        e = Experiment(dataset=dataset, standardize=mode, clients_per_round=3, **SETTINGS)
        data = fitted(e, federated_data(e))
        found, own = standardized(e, data), data.train.rows
        for split, seen in ((data.train, found.train), (data.test, found.test)):
            for client, rows in enumerate(split.rows):
                learned = own[client] if mode == "client" else np.concatenate(own)
                fit = x[data.train.given[learned]]
                expected = (x[split.given[rows]] - fit.mean(axis=0)) / fit.std(axis=0)
                shown, _ = seen.take(torch.from_numpy(rows))
                assert shown.dtype == torch.float32
                np.testing.assert_allclose(shown.numpy(), expected, atol=1e-5)


@pytest.mark.full
def test_an_export_tells_seconds_apart(tmp_path):
    quick = {"num_rounds": 2, "progress": False, "out": tmp_path / "run"}
    run = engram.simulate(dataset=written(tmp_path, "csv"), **quick, **SETTINGS)
    new = pd.DataFrame({"seconds": 1.7e9 + np.arange(41.0), "offset": 1e8})
    new.to_csv(tmp_path / "new.csv", index=False)
    for form in ("safetensors", "onnx"):
        folder = run.export("a", out=tmp_path / form, format=form)
        table = predict(folder, tmp_path / "new.csv", tmp_path / "out.csv").table
        different = table.select_dtypes("number").iloc[:, -1].nunique()
        assert different == 41 if form == "safetensors" else different < 41  # of float32
    module = engram.load_model(tmp_path / "safetensors")
    with torch.no_grad():
        found = module(torch.tensor(new.to_numpy()))
        again = module.double()(torch.tensor(new.to_numpy()))
    torch.testing.assert_close(found, again.float(), rtol=1e-4, atol=1e-4)


def test_targets_too_close_for_float32_are_refused(tmp_path):
    settings = {"task": "regression", "num_clients": 3, "partition": "natural"}
    dataset = write_npz(tmp_path / "rows.npz", x=X, y=X[:, 1], task=SITE)
    words = r"y must be numbers whose differences float32 keeps, got \S+ to \S+: take off a const"
    with pytest.raises(DataError, match=words):
        federated_data(Experiment(dataset=dataset, method="fedavg", **settings))
    for y in (X[:, 1] - 1e8, 2.0**24 - np.arange(ROWS)):  # the latter are whole
        dataset = write_npz(tmp_path / "rows.npz", x=X, y=y, task=SITE)
        data = federated_data(Experiment(dataset=dataset, method="fedavg", **settings))
        np.testing.assert_allclose(data.train.y.numpy(), y[data.train.given], rtol=1e-6)


def test_arrays_that_are_used_as_they_are_are_said(tmp_path, caplog):
    settings = {"num_clients": 3, "partition": "natural", "method": "fedavg"}
    dataset = write_npz(tmp_path / "lossy.npz", x=X, y=Y, task=SITE)
    with caplog.at_level(logging.WARNING):
        data = federated_data(Experiment(dataset=dataset, **settings))
    assert data.train.x.dtype == torch.float32
    assert "column 0 of x has values from 1699999" in caplog.text
    assert "whose differences float32 does not keep: set standardize=federation" in caplog.text
