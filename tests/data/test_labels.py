"""Classes of any kind: text, truth values, numbers, one-hot rows, in memory and in files."""

import numpy as np
import pytest
import torch

import engram
from engram.data.labels import likely_task
from engram.data.load_federation import federated_data, own_data
from engram.data.readers.in_memory import arrays_of, hold
from engram.data.source import Source
from engram.home.predicting import predict
from engram.settings.errors import DataError
from engram.settings.experiment import Experiment
from tests.samples import entry
from tests.support import declared_values, write_npz

NUMBERS = np.arange(24) % 3
X = np.arange(24)[:, None] + 0.25  # a row tells which it is
GIVEN = {"num_clients": 2, "clients_per_round": 1, "partition": "natural", "batch_size": 2}
GIVEN |= {"method": "fedavg", "validation_fraction": 0, "test_fraction": 0.25}

KINDS = {
    "numbers": (NUMBERS, ()),
    "whole floats": (NUMBERS.astype("float64"), ()),
    "one column": (NUMBERS[:, None], ()),
    "one-hot": (np.eye(3, dtype="float32")[NUMBERS], ()),
    "other numbers": (np.array([-1, 3, 7])[NUMBERS], ("-1", "3", "7")),
    "other floats": (np.array([1.0, 2.0, 10.0])[NUMBERS], ("1", "2", "10")),
    "text": (np.array(["ant", "bee", "cat"])[NUMBERS], ("ant", "bee", "cat")),
    "objects": (np.array(["ant", "bee", "cat"], dtype=object)[NUMBERS], ("ant", "bee", "cat")),
    "truth values": (NUMBERS == 1, ("False", "True")),
}


class Set(torch.utils.data.Dataset):
    """Rows of arrays, one by one."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, row):
        return self.x[row], self.y[row]


def in_memory(pair):
    """A list of two clients, who have the classes unevenly: the first lacks the last one."""
    return lambda y, folder: hold(arrays_of([pair(X[part], y[part]) for part in parts()]))


def parts():
    first = np.isin(np.arange(24), np.flatnonzero(NUMBERS < 2)[:10])
    return [first, ~first]


def in_npz(y, folder):
    own = {"task": parts()[1].astype(int), "x": X, "y": y.astype(str) if y.dtype == object else y}
    return write_npz(folder / "a.npz", **own)


def in_csv(y, folder):
    rows = zip(X[:, 0], y.tolist(), parts()[1].astype(int), strict=True)
    lines = ["x,y,task", *(f"{x},{label},{task}" for x, label, task in rows)]
    (folder / "a.csv").write_text("\n".join(lines))
    return f"csv:{folder}/a.csv"


SOURCES = {
    "arrays": in_memory(lambda x, y: (x, y)),
    "lists": in_memory(lambda x, y: (x.tolist(), y.tolist())),
    "data sets": in_memory(Set),
    "npz": in_npz,
    "csv": in_csv,
}


@pytest.mark.parametrize("source", SOURCES)
def test_classes_have_the_same_numbers_and_names_wherever_they_are(source, tmp_path):
    for kind, (y, names) in KINDS.items():
        if source == "csv" and y.ndim > 1:
            continue
        whole = source == "csv" and "other" in kind
        written = {"schema": 'columns.y = {kind = "whole"}'} if whole else {}
        expected = NUMBERS == 1 if kind == "truth values" else NUMBERS
        with entry(kind):
            (tmp_path / kind).mkdir()
            dataset = SOURCES[source](y, tmp_path / kind)
            data = federated_data(Experiment(dataset=dataset, **GIVEN, **written))
            assert (data.outputs, data.kind.classes) == (2 if kind == "truth values" else 3, names)
            for split in (data.train, data.test):
                x, found = split.take(torch.arange(len(split.y)))
                assert found.tolist() == expected[x[:, 0].long()].tolist()


def read(y, **settings):
    dataset = hold({"x": X, "y": y, "task": NUMBERS % 2})
    return federated_data(Experiment(dataset=dataset, **GIVEN | settings))


def test_declared_classes_have_their_order_and_their_names():
    text, whole = KINDS["text"][0], KINDS["other numbers"][0]
    written = 'columns.y = {kind = "category", values = ["cat", "dog", "bee", "ant"]}'
    for how in ({"schema": declared_values(y="cat|dog|bee|ant")}, {"schema": written}):
        data = read(text, **how)
        assert (data.outputs, data.kind.classes) == (4, ("cat", "dog", "bee", "ant"))
        every = np.concatenate([data.train.y, data.test.y])
        assert np.bincount(every).tolist() == [8, 0, 8, 8]
    assert read(whole, schema=declared_values(y="7|3|-1")).kind.classes == ("7", "3", "-1")
    assert read(NUMBERS, schema=DECLARED).kind.classes == ("ant", "bee", "cat")
    assert read(text, num_classes=4).kind.class_names == ["ant", "bee", "cat", "3"]
    assert read(NUMBERS, num_classes=4).kind.class_names == ["0", "1", "2", "3"]


DECLARED, TWO = declared_values(y="ant|bee|cat"), {"schema": declared_values(y="ant|bee")}
NO_CLASSES = [
    (NUMBERS / 2, {}, "y must be one class a row, got float64, 0.5 in row 0 of client 1: set "
     "task=regression for numbers"),
    (np.eye(3)[NUMBERS] * 2, {}, "shape .24, 3. with 2.0 in row 0 of client 0: set task=regr"),
    (1 - np.eye(3)[NUMBERS], {}, "got a sum of 2.0 in row 0 of client 0: set task=multi-label"),
    (np.arange(24) * 10, {}, "at most 12 classes, .* got 24 different numbers: set task"),
    (np.arange(24) * 10, {"num_classes": 3}, "classes 0 to 2 .* got 10 in row 0 of client 1"),
    (KINDS["text"][0], {"num_classes": 2}, r"y must be of 2 classes \(num-classes\), got 3"),
    (KINDS["text"][0], TWO, "bee .* got 'cat' in row 1 of client 0"),
    (np.array(["ant", ""])[NUMBERS % 2], {}, "one class a row, got '' in row 0 of client 1"),
    (NUMBERS, TWO, "classes 0 to 1 .*got 2 in row 1 of client 0"),
    (np.eye(3)[NUMBERS], TWO, r"3 columns|2 columns \(values\)"),
]  # fmt: skip


def test_other_targets_than_classes_are_refused_in_one_line():
    for y, settings, words in NO_CLASSES:
        one_line = f"^[^\n]*{words}[^\n]*$"
        with entry(y, settings, words), pytest.raises(DataError, match=one_line):
            read(y, **settings)


def test_more_than_a_hundred_other_numbers_are_no_classes():
    x = np.repeat(np.arange(101), 8)
    data = {"x": x[:, None].astype("float32"), "y": x * 3, "task": np.arange(808) % 2}
    words = r"at most 100 classes, .* 101 different numbers: set task=r"
    with pytest.raises(DataError, match=words):
        federated_data(Experiment(dataset=hold(data), **GIVEN))
    found = federated_data(Experiment(dataset=hold(data | {"y": x}), **GIVEN))
    assert (found.outputs, found.kind.classes) == (101, ())


def test_text_beside_numbers_is_refused():
    text = KINDS["text"][0]
    for pair in (lambda x, y: (x, y), Set):
        data = {"elm": pair(X, text), "oak": pair(X, NUMBERS)}
        with pytest.raises(DataError, match="y of client oak must be <U3 as that of client elm, g"):
            arrays_of(data)


def test_a_node_numbers_no_classes_by_its_own_rows(plug_ins, tmp_path):
    few = {"x": X, "y": np.array([3, 7])[NUMBERS % 2]}
    dataset = write_npz(tmp_path / "a.npz", **few)
    e = Experiment(**GIVEN)
    words = "from 0 without gaps, got 3, 7: other nodes may hold others: declare them for the run, "
    with pytest.raises(DataError, match=words + r"as schema='columns.y = .values = ..A., .B."):
        own_data(e, Source(dataset), 1)
    e = Experiment(**GIVEN, schema=declared_values(y="-1|3|7"))
    found = own_data(e, Source(dataset), 1)
    assert (found.outputs, found.kind.classes) == (3, ("-1", "3", "7"))
    assert sorted(set(found.train.y.tolist())) == [1, 2]

    @engram.data
    def one_by_one(client):
        return X, KINDS["text"][0]

    with pytest.raises(DataError, match="y is text, whose values other nodes"):
        federated_data(Experiment(dataset="one-by-one", **GIVEN))
    declared = Experiment(dataset="one-by-one", **GIVEN, schema=DECLARED)
    assert federated_data(declared, hosted=[1]).kind.classes == ("ant", "bee", "cat")


TASKS = [
    (NUMBERS, "classification"),
    (KINDS["text"][0], "classification"),
    (KINDS["truth values"][0], "classification"),
    (NUMBERS / 7, "regression"),
    (np.arange(24.0), "regression"),  # no value twice
    (np.arange(60.0).repeat(2), "regression"),
    (np.stack([NUMBERS / 7] * 2, 1), "regression"),
]


def test_the_task_is_that_of_the_targets():
    for y, task in TASKS:
        with entry(y, task):
            assert likely_task(np.asarray(y)) == task


def test_targets_that_fit_several_tasks_need_one(tmp_path):
    for y, words in (
        (NUMBERS.astype("float32"), r"few whole numbers, as floats \(0, 1, 2\): set task=classif"),
        (np.eye(3)[NUMBERS], r"3 zeros and ones a row: set task=classification \(one-hot"),
        (np.eye(3, dtype=int)[NUMBERS], "3 zeros and ones a row"),
        (1 - np.eye(3)[NUMBERS], "3 zeros and ones a row"),
    ):
        with entry(y), pytest.raises(DataError, match=f"^y has {words}"):
            engram.simulate([(X, y)] * 2, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_names_of_classes_are_kept_by_results_exports_and_predictions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    data = {}
    for name in ("elm", "oak", "ash"):
        x = rng.normal(size=(40, 2)).astype("float32")
        data[name] = x, np.where(x[:, 0] > 0, "up", "down")
    quick = {"num_rounds": 2, "batch_size": 4, "progress": False, "eta": 0.5}
    run = engram.simulate(data, method="fedavg", out="run", **quick)
    assert run.metrics["classes"].dropna().tolist() == [run.results["classes"]] == [["down", "up"]]
    folder = run.export("oak", out="oak")
    assert "| classes: down, up |" in (folder / "card.md").read_text()
    np.savez("new.npz", x=data["oak"][0])
    table = predict(folder, tmp_path / "new.npz", tmp_path / "out.csv").table
    model = engram.load_model(folder)
    likeliest = model(torch.from_numpy(data["oak"][0])).argmax(1).tolist()
    assert table["predicted"].tolist() == [("down", "up")[k] for k in likeliest]
    np.savez("labeled.npz", x=data["oak"][0], y=data["oak"][1])
    card = (run.adapt("labeled.npz", out="new") / "card.md").read_text()
    assert "| classes: down, up |" in card
