"""Names of classes that a source has, ``ClassLabel``, categories, ``.classes``, folders: kept."""

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, List, Value
from torch.utils.data import Subset

import engram
from engram.data.image_axes import say_once
from engram.data.load_federation import federated_data
from engram.data.readers.in_memory import arrays_of, hold
from engram.settings.errors import DataError
from engram.settings.experiment import Experiment
from tests.samples import entry
from tests.support import declared_values

N = 48
NAMES = ("low", "mid", "high", "never")  # in no order of letters, and one without rows
CODES = np.arange(N) * 5 % 3
X = np.random.default_rng(0).normal(size=(N, 2)).astype("float32")
X[:, 0] = CODES + np.arange(N) / 100  # a row tells its class
WARD = np.arange(N) // 3 % 2
GIVEN = {"method": "fedavg", "partition": "natural", "num_clients": 2, "clients_per_round": 2}
GIVEN |= {"task_column": "ward", "batch_size": 4}


class Set(torch.utils.data.Dataset):
    """Rows of a torch data set that numbers its classes."""

    def __init__(self, x, targets, classes=NAMES, change=None):
        self.x, self.targets, self.classes, self.change = x, targets, classes, change

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        y = int(self.targets[row])
        return self.x[row], self.change(y) if self.change else y


def halves(make):
    return {f"w{k}": make(X[k == WARD], CODES[k == WARD]) for k in (0, 1)}


def labelled(folder, inputs, kind):
    features = {name: Value("float32") for name in inputs}
    features = features if len(inputs) > 1 else {"x": List(Value("float32"))}
    features |= {"y": ClassLabel(names=list(NAMES)), "ward": Value("int64")}
    rows = Dataset.from_dict({**inputs, "y": CODES, "ward": WARD}, features=Features(features))
    path = folder / f"rows.{kind}"
    rows.to_parquet(path) if kind == "parquet" else rows.save_to_disk(path)
    return f"{kind}:{path}"


def series(y):
    return pd.Series(pd.Categorical.from_codes(y, NAMES))


def of(make):
    return lambda _: hold(arrays_of(halves(make)))


def of_parts(*clients):
    return lambda _: hold(arrays_of([*clients]))


PARTS = [np.flatnonzero(k == WARD) for k in (0, 1)]
SOURCES = {
    "ClassLabel of a table": lambda f: labelled(f, {"a": X[:, 0], "b": X[:, 1]}, "parquet"),
    "ClassLabel of lists": lambda f: labelled(f, {"x": X.tolist()}, "parquet"),
    "ClassLabel in Arrow": lambda f: labelled(f, {"x": X.tolist()}, "arrow"),
    "categories": of(lambda x, y: (x, series(y))),
    "categories of frames": of(lambda x, y: (pd.DataFrame(x, columns=["a", "b"]), series(y))),
    "categories in a frame": of(lambda x, y: (x, series(y).to_frame("mood"))),
    "torch": of(Set),
    "torch subsets": of_parts(*(Subset(Set(X, CODES), part) for part in PARTS)),
    "torch, each in an order": of_parts(
        Set(X[PARTS[0]], CODES[PARTS[0]]), Set(X[PARTS[1]], 3 - CODES[PARTS[1]], NAMES[::-1])
    ),
}


def test_classes_are_called_as_their_source_calls_them(tmp_path):
    for name, source in SOURCES.items():
        (folder := tmp_path / name).mkdir()
        data = federated_data(Experiment(**GIVEN, dataset=source(folder)))
        with entry(name):
            assert (data.kind.classes, data.outputs) == (NAMES, 4)
            for part in (data.train, data.test):
                x, y = part.take(torch.as_tensor(np.concatenate(part.rows)))
                assert y.tolist() == x[:, 0].long().tolist()  # CODES


def test_a_label_that_is_none_of_the_named_classes_is_refused(tmp_path):
    gone = np.where(np.arange(N) == 7, -1, CODES)
    clients = [(X[k == WARD], gone[k == WARD]) for k in (0, 1)]
    data = hold(arrays_of([Set(*rows) for rows in clients]))
    with pytest.raises(DataError, match=r"classes 0 to 3 .*got -1 in row 4 of client 0"):
        federated_data(Experiment(**GIVEN, num_classes=4, dataset=data))
    kinds = {"x": List(Value("float32")), "y": ClassLabel(names=list(NAMES)), "ward": Value("int8")}
    rows = Dataset.from_dict({"x": X.tolist(), "y": gone, "ward": WARD}, features=Features(kinds))
    rows.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match="y must be numbers of 4 classes, got -1 in row 4 of clien"):
        federated_data(Experiment(**GIVEN, dataset=f"parquet:{tmp_path}/t.parquet"))


def test_names_of_a_file_are_not_those_of_labels_that_items_change():
    whole = Set(X, CODES, change=lambda y: y % 2)
    for part in (whole, Subset(whole, np.arange(N))):
        data = arrays_of(part)
        assert sorted(np.unique(data["y"])) == [0, 1]
        e = Experiment(**{**GIVEN, "partition": "iid"}, dataset=hold(data))
        assert federated_data(e).outputs == 2


# --- What is taken for classes is said ------------------------------------------------------------

SAID = {
    "ages": (20 + 3 * np.arange(N) % 60, "20 different whole numbers from 20 to 77"),
    "a scale of 0 to 10": (np.arange(N) % 11, "11 different whole numbers from 0 to 10"),
    "gaps": (np.array([1, 5, 9])[CODES], "3 different whole numbers from 1 to 9"),
}
QUIET = {
    "digits": np.arange(N) % 10,
    "two with a gap": np.array([1, 9])[CODES % 2],
    "text": (np.arange(N) % 12).astype(str),
    "categories": pd.Series(20 + np.arange(N) % 40, dtype="category"),
}


def noted(y, caplog, **settings):
    say_once.cache_clear()
    caplog.clear()
    data = hold(arrays_of((X, y)))
    federated_data(Experiment(**{**GIVEN, **settings, "partition": "iid"}, dataset=data))
    return [record.getMessage() for record in caplog.records]


def test_whole_numbers_that_may_be_quantities_are_said_to_be_classes(caplog):
    for name, (y, told) in SAID.items():
        words = f"data: y: {told} are taken for classes; task=regression predicts numbers"
        with entry(name):
            assert noted(y, caplog) == [words]
    alike = np.array(["Yes", "no", "yes"])[np.arange(N) % 3]
    words = "data: some classes of y differ in case, blanks or the like alone: Yes, no, yes"
    assert noted(alike, caplog) == [words]


def test_plain_and_declared_classes_are_not_said(caplog):
    for name, y in QUIET.items():
        with entry(name):
            assert noted(y, caplog) == []
    assert noted(np.arange(N) % 11, caplog, num_classes=11) == []
    assert noted(np.arange(N) % 11, caplog, schema=declared_values(y="|".join("abcdefghijk"))) == []


TASKS = [("number", "regression"), ("category", "classification")]


@pytest.mark.parametrize(("kind", "task"), TASKS)
def test_each_line_that_a_refusal_of_a_target_offers_is_its_answer(kind, task, tmp_path):
    y = np.clip(50 + 12 * X[:, 1], 20, 80).round().astype(int)
    y[0], y[1] = 20, 80
    table = pd.DataFrame(X, columns=["a", "b"]).assign(y=y, ward=WARD)
    table.to_csv(tmp_path / "t.csv", index=False)
    quick = {**GIVEN, "num_rounds": 1, "progress": False, "dataset": f"csv:{tmp_path}/t.csv"}
    with pytest.raises(DataError, match="by task=regression, as numbers: write") as caught:
        engram.simulate(**quick)
    line = f'columns.y = {{kind = "{kind}"}}'
    assert line in str(caught.value)
    run = engram.simulate(**quick, schema=line)
    assert run.experiment.task == task
    classes = [*map(int, run.results.get("classes") or ())]
    assert sorted(classes) == (sorted({*y.tolist()}) if kind == "category" else [])


def test_a_schema_s_target_of_numbers_goes_with_methods_that_have_no_task(tmp_path):
    table = pd.DataFrame(X, columns=["a", "b"]).assign(y=X[:, 1] * 2.5, ward=WARD)
    table.to_csv(tmp_path / "t.csv", index=False)
    lines = 'columns.y = {kind = "number", role = "target"}'
    e = Experiment(method="molar", dataset=f"csv:{tmp_path}/t.csv", schema=lines)
    assert e.target_column == "y"
